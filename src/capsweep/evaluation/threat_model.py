"""What an attack may change of the test examples, and within which bounds.

Shape letters: B batch, C H W image.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from capsweep.data.image_batches import CroppedImages, ShiftedImages, compute_moments
from capsweep.errors import UserError
from capsweep.evaluation.checkpoint import TrainedCell

SCALES = {  # what eps is in units of
    "input": "the network's input",
    "pixels": "intensities in 0..1, before each image is standardised",
}
UNIT, OWN, NONE = "[0, 1]", "each image's own of 0..255, standardised as it was", "none"


@dataclass(frozen=True)
class ThreatModel:
    """Images [B, C, H, W] that an attack starts from; low, high: bounds that broadcast to them.

    show: makes of such images the network's input. bounds: the bounds in words.
    """

    images_BCHW: Tensor
    labels_B: Tensor
    low: Tensor
    high: Tensor
    show: Callable[[Tensor], Tensor]
    bounds: str

    def select_images(self, index_B: Tensor) -> "ThreatModel":
        """The same of some of the examples."""
        return replace(
            self,
            images_BCHW=self.images_BCHW[index_B],
            labels_B=self.labels_B[index_B],
            low=self.low[index_B],
            high=self.high[index_B],
        )

    def clip_images(self, images_BCHW: Tensor, eps: float) -> Tensor:
        """Images brought into the ball around those of the model, then within the bounds."""
        lowest = (self.images_BCHW - eps).maximum(self.low)
        return images_BCHW.clamp(lowest, (self.images_BCHW + eps).minimum(self.high))


def make_threat_model(cell: TrainedCell, part: slice, scale: str) -> ThreatModel:
    """The threat model of some test examples of a cell.

    scale input: the network's input is changed. pixels: intensities of 0..1 are, and standardised
    afterwards as they are in the test, so that the attack must reckon with that. Raises UserError
    for examples of several classes.
    """
    test, infinity = cell.test, float("inf")
    batch = test.evaluation_batch(part)
    if batch.labels.dim() > 1:
        raise UserError(
            f"{cell.name}: attacks need one class per image, and this data set shows several"
        )
    images_BCHW, show = batch.images_BCHW, _show_unchanged
    if not isinstance(test, (ShiftedImages, CroppedImages)):
        if scale == "pixels":
            raise UserError(f"--eps-scale pixels: unknown for {type(test).__name__}; leave it out")
        low, high, bounds = _fill(images_BCHW, -infinity), _fill(images_BCHW, infinity), NONE
    elif isinstance(test, CroppedImages) and test.standardise and scale == "input":
        mean_B1, deviation_B1 = compute_moments(test.crop_pixels(part).float())
        low, high = (((end - mean_B1) / deviation_B1)[..., None, None] for end in (0, 255))
        bounds = OWN
    else:
        low, high, bounds = _fill(images_BCHW, 0.0), _fill(images_BCHW, 1.0), UNIT
        if isinstance(test, CroppedImages) and test.standardise:
            images_BCHW = test.crop_pixels(part).float() / 255
            show = partial(_show_standardised, test)
    return ThreatModel(images_BCHW, batch.labels, low, high, show, bounds)


def _fill(images_BCHW: Tensor, value: float) -> Tensor:
    return torch.full((len(images_BCHW), 1, 1, 1), value, device=images_BCHW.device)


def _show_unchanged(images_BCHW: Tensor) -> Tensor:
    return images_BCHW


def _show_standardised(test: CroppedImages, images_BCHW: Tensor) -> Tensor:
    return test.scale_pixels(255 * images_BCHW)
