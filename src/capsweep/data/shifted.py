"""Images that move by whole pixels in training, as MNIST does in the papers.

Shape letters: B batch, N examples, C H W image.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from capsweep.data.augment import draw_offsets, shift_windows, to_unit
from capsweep.data.images import LabelledImages
from capsweep.data.order import generator_of
from capsweep.data.presented import Batch, Split
from capsweep.errors import ConfigError


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
        images_NCHW = examples.images_NCHW if canvas is None else centred(examples, canvas)
        self.images_NCHW, self.labels_N = images_NCHW, examples.labels_N
        self.shift = shift
        if split == "train":
            self.windows = shift_windows(images_NCHW, shift)
        elif split == "validation" and moved_validation:
            offsets_N2 = draw_offsets(len(self), shift, generator_of("validation", shift))
            windows = shift_windows(images_NCHW, shift)
            self.images_NCHW = _at(
                windows, torch.arange(len(self), device=self.device), offsets_N2.to(self.device)
            )

    def __len__(self) -> int:
        return len(self.labels_N)

    @property
    def device(self) -> torch.device:
        """Where its batches are."""
        return self.labels_N.device

    def epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """Each example with its shift of that epoch."""
        # Drawn on the CPU, moved once per epoch: the same numbers on every device, no copy per
        # step.
        generator = generator_of(seed, "shift", epoch)
        offsets_N2 = draw_offsets(len(self), self.shift, generator).to(self.device)

        def batch(index_B: Tensor) -> Batch:
            images_BCHW = _at(self.windows, index_B, offsets_N2[index_B])
            return Batch(to_unit(images_BCHW), self.labels_N[index_B])

        return batch

    def evaluated(self, part: slice) -> Batch:
        """Examples in order, unshifted."""
        return Batch(to_unit(self.images_NCHW[part]), self.labels_N[part])


def centred(examples: LabelledImages, canvas: int) -> Tensor:
    """Images [N, C, H, W] in the middle of canvas x canvas pixels, zeros around.

    Raises ConfigError when they have no room.
    """
    height, width = examples.images_NCHW.shape[-2:]
    if max(height, width) > canvas:
        raise ConfigError(f"a canvas of {canvas} pixels has no room for images of {height}x{width}")
    above, left = (canvas - height) // 2, (canvas - width) // 2
    below, right = canvas - height - above, canvas - width - left
    return F.pad(examples.images_NCHW, [left, right, above, below])


def _at(windows: Tensor, index_B: Tensor, offsets_B2: Tensor) -> Tensor:
    dy_B, dx_B = offsets_B2.unbind(1)
    return windows[index_B, :, dy_B, dx_B]
