"""What an attack may change of the test examples, and within which bounds.

Shape letters: B batch, C H W image.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from capsweep.data.batches import EvaluatedSplit
from capsweep.data.image_batches import CroppedImages, ShiftedImages, compute_moments
from capsweep.errors import UserError

SCALES = {  # what eps is in units of
    "input": "the network's input",
    "pixels": "intensities in 0..1, before each image is standardised",
}
UNIT, OWN, NONE = "[0, 1]", "each image's own of 0..255, standardised as it was", "none"


@dataclass(frozen=True)
class Surface:
    """Images [B, C, H, W] that an attack starts from; low, high: [B, 1, 1, 1], None: no bound.

    shown: makes of such images what the network is shown. bounds: the bounds in words.
    """

    images_BCHW: Tensor
    labels_B: Tensor
    low: Tensor | None
    high: Tensor | None
    shown: Callable[[Tensor], Tensor]
    bounds: str

    def select(self, index_B: Tensor) -> "Surface":
        """Some of the examples."""
        low, high = (None if bound is None else bound[index_B] for bound in (self.low, self.high))
        images_BCHW, labels_B = self.images_BCHW[index_B], self.labels_B[index_B]
        return replace(self, images_BCHW=images_BCHW, labels_B=labels_B, low=low, high=high)

    def bounded(self, images_BCHW: Tensor, eps: float) -> Tensor:
        """Images brought into the ball around those of the surface, then within the bounds."""
        lowest, highest = self.images_BCHW - eps, self.images_BCHW + eps
        if self.low is not None and self.high is not None:
            lowest, highest = lowest.maximum(self.low), highest.minimum(self.high)
        return images_BCHW.clamp(lowest, highest)


def of(test: EvaluatedSplit, part: slice, scale: str) -> Surface:
    """The surface of some test examples.

    scale input: the network's input is changed. pixels: intensities of 0..1 are, and standardised
    afterwards as they are in the test, so that the attack must reckon with that. Raises UserError
    for examples of several classes.
    """
    batch = test.evaluation_batch(part)
    if batch.labels.dim() > 1:
        raise UserError("attacks need one class per image, and this data set shows several")
    images_BCHW = batch.images_BCHW
    if isinstance(test, CroppedImages) and test.standardise:
        pixels_BCHW = test.crop_pixels(part).float()
        if scale == "pixels":
            low, high = _bounds(images_BCHW, 0.0), _bounds(images_BCHW, 1.0)
            unit_BCHW = pixels_BCHW / 255
            return Surface(unit_BCHW, batch.labels, low, high, _standardise(test), UNIT)
        mean_B111, deviation_B111 = (m[..., None, None] for m in compute_moments(pixels_BCHW))
        low, high = ((black - mean_B111) / deviation_B111 for black in (0, 255))
        return Surface(images_BCHW, batch.labels, low, high, _as_it_is, OWN)
    if isinstance(test, (ShiftedImages, CroppedImages)):
        low, high = _bounds(images_BCHW, 0.0), _bounds(images_BCHW, 1.0)
        return Surface(images_BCHW, batch.labels, low, high, _as_it_is, UNIT)
    if scale == "pixels":
        raise UserError(f"--eps-scale pixels: unknown for {type(test).__name__}; leave it out")
    return Surface(images_BCHW, batch.labels, None, None, _as_it_is, NONE)


def _bounds(images_BCHW: Tensor, value: float) -> Tensor:
    return torch.full((len(images_BCHW), 1, 1, 1), value, device=images_BCHW.device)


def _standardise(test: CroppedImages) -> Callable[[Tensor], Tensor]:
    return lambda images_BCHW: test.scale_pixels(255 * images_BCHW)


def _as_it_is(images_BCHW: Tensor) -> Tensor:
    return images_BCHW
