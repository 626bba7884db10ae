"""How a split looks to a network: the contract between data sets and loaders.

A data set says in `dataset.batches` which class presents it; without that its images are shifted.

Shape letters: B batch, L classes shown in one image, N examples, C H W image.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from capsweep.data.images import LabelledImages

Split = Literal["train", "validation", "test"]


class Batch(NamedTuple):
    """float32 images [B, C, H, W] and int64 labels, [B] or [B, L], on the training device.

    targets_BLCHW: what a decoder shall draw for each label, in 0..1; None: the images themselves.
    """

    images_BCHW: Tensor
    labels: Tensor
    targets_BLCHW: Tensor | None = None


class Presented(Protocol):
    """One split on the training device."""

    def __len__(self) -> int: ...

    @property
    def device(self) -> torch.device:
        """Where its batches are."""
        ...

    def epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """What makes batches of examples [B] in a training epoch: a function of (seed, epoch)."""
        ...

    def evaluated(self, part: slice) -> Batch:
        """Examples in order, as they are validated and tested: the same every time."""
        ...


class Presenter(Protocol):
    """Makes a `Presented` of the examples of a split, on whose device it works."""

    def __call__(self, examples: LabelledImages, split: Split) -> Presented: ...
