"""Images that move by whole pixels in training, as MNIST does in the papers.

Shape letters: B batch, N examples, C H W image.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from capsweep.data.batches import (
    Batch,
    DeviceSplit,
    Split,
    generator_of,
    shift_windows,
    to_unit,
    window_places,
    windows_at,
)
from capsweep.data.images import LabelledImages
from capsweep.errors import ConfigError

DIAGONAL, SIGNS = (1, 2, 3), (-1, 1)  # of the 13-crop test: pixels off the middle


class ShiftedImages(DeviceSplit):
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
        self.labels_N, self.device = examples.labels_N, examples.labels_N.device
        is_validation_moved = split == "validation" and moved_validation
        self.shift = shift if split == "train" or is_validation_moved else 0
        self.windows = shift_windows(examples.images_NCHW, self.shift, canvas)
        self.images_NCHW = self.windows[:, :, self.shift, self.shift]
        if is_validation_moved:
            place_N = self._draw_places(generator_of("validation", shift))
            self.images_NCHW = windows_at(self.windows, place_N)

    def __len__(self) -> int:
        return len(self.labels_N)

    def prepare_epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """Each example with its shift of that epoch."""
        place_N = self._draw_places(generator_of(seed, "shift", epoch))

        def make_batch(index_B: Tensor) -> Batch:
            images_BCHW = windows_at(self.windows, place_N.index_select(0, index_B))
            return Batch(to_unit(images_BCHW), self.labels_N.index_select(0, index_B))

        return make_batch

    def evaluation_batch(self, part: slice) -> Batch:
        """Return examples in order, as they are validated and tested."""
        return Batch(to_unit(self.images_NCHW[part]), self.labels_N[part])

    def _draw_places(self, generator: torch.Generator) -> Tensor:
        """The place of a drawn window of every example [N]."""
        # Drawn on the CPU, moved once per epoch: the same numbers on every device, no copy per
        # step.
        offsets_N2 = torch.randint(2 * self.shift + 1, (len(self), 2), generator=generator)
        everyone_N = torch.arange(len(self), device=self.device)
        return window_places(self.windows, everyone_N, offsets_N2.to(self.device))


class CroppedImages(DeviceSplit):
    """Training: a random crop; flip: mirrored with probability 1/2; brightness: a number of
    -brightness..brightness added, of 0..255; contrast: [low, high], distances to the channel's mean
    multiplied by a number of that range. Evaluation: the crop in the middle, nothing else.

    mean_over: image or crop, which mean contrast keeps. standardise: at the end every image has
    mean 0 and deviation 1 over all its values (deviations below 1 / sqrt(values) count as that);
    else 0..255 becomes 0..1. Raises ConfigError when a crop is larger than the images.
    """

    def __init__(
        self,
        examples: LabelledImages,
        split: Split,
        *,
        crop: int,
        flip: bool,
        brightness: float,
        contrast: Sequence[float],
        mean_over: str,
        standardise: bool,
    ) -> None:
        self.labels_N, self.device = examples.labels_N, examples.labels_N.device
        height, width = examples.images_NCHW.shape[2:]
        if height != width or crop > width:
            raise ConfigError(
                f"dataset.batches.crop={crop} cuts squares out of squares that are as large, and "
                f"images are {height}x{width}"
            )
        self.slack = width - crop
        self.windows = examples.images_NCHW.unfold(2, crop, 1).unfold(3, crop, 1)
        self.flip, self.brightness, self.standardise = flip, brightness, standardise
        self.lowest, self.highest = contrast
        self.mean_NC = None
        if split == "train" and mean_over == "image":
            self.mean_NC = examples.images_NCHW.float().mean(dim=(2, 3))

    def __len__(self) -> int:
        return len(self.labels_N)

    def prepare_epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """Each example with its crop and jitter of that epoch."""
        generator = generator_of(seed, "crop", epoch)
        everyone_N = torch.arange(len(self), device=self.device)
        offsets_N2 = torch.randint(self.slack + 1, (len(self), 2), generator=generator)
        place_N = window_places(self.windows, everyone_N, offsets_N2.to(self.device))
        flip_N, brightness_N, contrast_N = self._draw_jitter(generator)

        def make_batch(index_B: Tensor) -> Batch:
            images_BCHW = windows_at(self.windows, place_N[index_B]).float()
            images_BCHW = torch.where(_per_image(flip_N[index_B]), images_BCHW.flip(3), images_BCHW)
            mean_BC = (
                images_BCHW.mean(dim=(2, 3)) if self.mean_NC is None else self.mean_NC[index_B]
            )
            mean_BC11 = mean_BC[..., None, None]
            spread_BCHW = (images_BCHW - mean_BC11) * _per_image(contrast_N[index_B])
            moved_BCHW = spread_BCHW + mean_BC11 + _per_image(brightness_N[index_B])
            return Batch(self.scale_pixels(moved_BCHW), self.labels_N[index_B])

        return make_batch

    def evaluation_batch(self, part: slice) -> Batch:
        """Examples in order, the crop in the middle."""
        return self._make_batch(self.crop_pixels(part), part)

    def crop_pixels(self, part: slice) -> Tensor:
        """The crops in the middle as they were taken, uint8 [B, C, H, W]."""
        middle = self.slack // 2
        return self.windows[part, :, middle, middle]

    def iterate_crops(self, part: slice) -> Iterator[Batch]:
        """Examples in order, from 13 places: the middle, and DIAGONAL pixels off it in both axes.

        Each is standardised by itself (the 13-crop test of the authors' code of "Matrix capsules
        with EM routing"). Raises ConfigError when the images have no room for them.
        """
        middle, last = self.slack // 2, self.slack
        if min(middle, last - middle) < DIAGONAL[-1]:
            raise ConfigError(
                f"dataset.batches.crop leaves {last} pixels around the crop, and 13 crops need "
                f"{2 * DIAGONAL[-1]}"
            )
        off = [(0, 0), *((dy * k, dx * k) for k in DIAGONAL for dy in SIGNS for dx in SIGNS)]
        for dy, dx in off:
            yield self._make_batch(self.windows[part, :, middle + dy, middle + dx], part)

    def _make_batch(self, images_BCHW: Tensor, part: slice) -> Batch:
        return Batch(self.scale_pixels(images_BCHW.float()), self.labels_N[part])

    def _draw_jitter(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Of all examples: whether mirrored, what is added, what contrast is multiplied by."""
        uniform_3N = torch.rand((3, len(self)), generator=generator).to(self.device)
        flip_N = uniform_3N[0] < (0.5 if self.flip else 0.0)
        brightness_N = (2 * uniform_3N[1] - 1) * self.brightness
        contrast_N = self.lowest + uniform_3N[2] * (self.highest - self.lowest)
        return flip_N, brightness_N, contrast_N

    def scale_pixels(self, images_BCHW: Tensor) -> Tensor:
        """Intensities of 0..255 as a network is shown them."""
        return standardise_images(images_BCHW) if self.standardise else images_BCHW / 255


class SignedImages(DeviceSplit):
    """Images whose bytes are numbers of -1..1, in all splits alike: v and 255 - v become x and -x,
    to the bit.
    """

    def __init__(self, examples: LabelledImages, split: Split) -> None:
        self.images_NCHW, self.labels_N = examples.images_NCHW, examples.labels_N
        self.device = examples.labels_N.device

    def __len__(self) -> int:
        return len(self.labels_N)

    def prepare_epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """Every epoch shows the same images."""
        return self._make_batch

    def evaluation_batch(self, part: slice) -> Batch:
        """Examples in order."""
        return self._make_batch(part)

    def _make_batch(self, index: Tensor | slice) -> Batch:
        signed = self.images_NCHW[index].to(torch.float32).mul_(2).sub_(255).div_(255)
        return Batch(signed, self.labels_N[index])


def standardise_images(images_BCHW: Tensor) -> Tensor:
    """Mean 0 and deviation 1 of every image over all its values, as TensorFlow's
    per_image_standardization: a deviation below 1 / sqrt(values) counts as that.
    """
    mean_B1, deviation_B1 = compute_moments(images_BCHW)
    return ((images_BCHW.flatten(1) - mean_B1) / deviation_B1).view_as(images_BCHW)


def compute_moments(images_BCHW: Tensor) -> tuple[Tensor, Tensor]:
    """What `standardise_images` takes from every image and divides it by, [B, 1] each."""
    values_BE = images_BCHW.flatten(1)
    deviation_B1 = values_BE.std(dim=1, correction=0, keepdim=True)
    lowest = 1 / math.sqrt(values_BE.shape[1])
    return values_BE.mean(dim=1, keepdim=True), deviation_B1.clamp(min=lowest)


def _per_image(value_B: Tensor) -> Tensor:
    return value_B[:, None, None, None]
