"""How a split looks to a network: the contract between data sets and loaders.

A data set says in `dataset.batches` which class presents it; without that its images are shifted.

Shape letters: B batch, L classes shown in one image, N examples, C H W image.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from capsweep.data.images import LabelledImages
from capsweep.data.order import Dealt

Split = Literal["train", "validation", "test"]


class Batch(NamedTuple):
    """float32 images [B, C, H, W] and int64 labels, [B] or [B, L], on the training device.

    targets_BLCHW: what a decoder shall draw for each label, in 0..1; None: the images themselves.
    dealt: which part of a batch of several devices this is; None: all of it.
    """

    images_BCHW: Tensor
    labels: Tensor
    targets_BLCHW: Tensor | None = None
    dealt: Dealt | None = None

    @property
    def counted(self) -> int:
        """Examples that count: all but a stand-in."""
        return len(self.labels) if self.dealt is None else self.dealt.mine


class Evaluated(Protocol):
    """One split, whose batches are on the training device: all that validating and testing ask."""

    def __len__(self) -> int: ...

    @property
    def device(self) -> torch.device:
        """Where its batches are."""
        ...

    def evaluated(self, part: slice) -> Batch:
        """Examples in order, as they are validated and tested: the same every time."""
        ...


class Presented(Evaluated, Protocol):
    """A split that lies on the training device, of which any examples can be asked for."""

    def epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """What makes batches of examples [B] in a training epoch: a function of (seed, epoch)."""
        ...


@runtime_checkable
class Streamed(Evaluated, Protocol):
    """A split that is read while it is trained on, in an order of its own."""

    def loader(
        self, batch_size: int, seed: int, rank: int = 0, world_size: int = 1
    ) -> "TrainingBatches":
        """Its shuffled batches; batch_size is over all ranks."""
        ...


class TrainingBatches(Protocol):
    """Shuffled batches of one rank, epoch after epoch, as Lightning takes them."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...


class Presenter(Protocol):
    """Makes a `Presented` of the examples of a split, on whose device it works."""

    def __call__(self, examples: LabelledImages, split: Split) -> Presented: ...


@dataclass(frozen=True)
class Field:
    """One array of a split that is streamed: dtype and shape of a single example."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one example."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


class ExampleRanges(Protocol):
    """The examples of a split, in the order of the sequence. Pickles, and may cross a fork."""

    @property
    def fields(self) -> Sequence[Field]:
        """What is read of each example."""
        ...

    def __len__(self) -> int: ...

    def read_into(self, start: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Fill arrays [B, ...], one for each of `fields`, with the examples from `start` on."""
        ...


@dataclass(frozen=True)
class OnDevice:
    """The examples of a split that is streamed, and where batches of them shall be."""

    examples: ExampleRanges
    device: torch.device


class StreamPresenter(Protocol):
    """Makes a `Streamed` of the examples of a split."""

    def __call__(self, placed: OnDevice, split: Split) -> Streamed: ...


@runtime_checkable
class StreamReader(Protocol):
    """Opens a data set that is read while it is trained on."""

    def check(self, folder: str) -> None:
        """Prove that it is there. Raises DataError naming the file and the cure."""
        ...

    def open(self, folder: str) -> Mapping[Split, ExampleRanges]:
        """Its splits; one that it has not is empty. Raises DataError."""
        ...
