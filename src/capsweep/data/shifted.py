"""Images that move by whole pixels in training, as MNIST does in the papers.

Shape letters: B batch, N examples, C H W image.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from capsweep.data.augment import (
    draw_offsets,
    margins,
    places,
    shift_windows,
    to_unit,
    windows_at,
)
from capsweep.data.images import LabelledImages
from capsweep.data.order import generator_of
from capsweep.data.presented import Batch, Split


class ShiftedImages:
    """Training images are shifted by up to `shift` pixels in both axes, zero fill.

    canvas: pixels; smaller images are put into the middle of one. moved_validation: validation
    images are shifted too, each always alike, so that validation asks what training teaches.
    """

    def __init__(
        self,
        examples: LabelledImages,
        split: Split,
        shift: int,
        canvas: int | None = None,
        moved_validation: bool = False,
    ) -> None:
        self.images_NCHW = examples.images_NCHW if canvas is None else centred(examples, canvas)
        self.labels_N, self.shift = examples.labels_N, shift
        if split == "train":
            self.windows = shift_windows(examples.images_NCHW, shift, canvas)
        elif split == "validation" and moved_validation:
            windows = shift_windows(examples.images_NCHW, shift, canvas)
            drawn_from = generator_of("validation", shift)
            place_N = self._drawn_places(windows, drawn_from)
            self.images_NCHW = windows_at(windows, place_N).contiguous()

    def __len__(self) -> int:
        return len(self.labels_N)

    @property
    def device(self) -> torch.device:
        """Where its batches are."""
        return self.labels_N.device

    def epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """Each example with its shift of that epoch."""
        place_N = self._drawn_places(self.windows, generator_of(seed, "shift", epoch))

        def batch(index_B: Tensor) -> Batch:
            images_BCHW = windows_at(self.windows, place_N.index_select(0, index_B))
            return Batch(to_unit(images_BCHW), self.labels_N.index_select(0, index_B))

        return batch

    def evaluated(self, part: slice) -> Batch:
        """Examples in order, unshifted."""
        return Batch(to_unit(self.images_NCHW[part]), self.labels_N[part])

    def _drawn_places(self, windows: Tensor, generator: torch.Generator) -> Tensor:
        """Of a window of every example [N]."""
        # Drawn on the CPU, moved once per epoch: the same numbers on every device, no copy per
        # step.
        offsets_N2 = draw_offsets(len(self), self.shift, generator).to(self.device)
        return places(windows, torch.arange(len(self), device=self.device), offsets_N2)


def centred(examples: LabelledImages, canvas: int) -> Tensor:
    """Images [N, C, H, W] in the middle of canvas x canvas pixels, zeros around.

    Raises ConfigError when they have no room.
    """
    return F.pad(examples.images_NCHW, margins(examples.images_NCHW, canvas))
