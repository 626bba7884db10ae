"""Batches of images that are shifted, cropped, or scaled to -1..1.

Shape letters: B batch, N examples, C H W image.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from capsweep.data.batches import Batch, DeviceSplit, Split, generator_of, to_unit
from capsweep.data.images import LabelledImages
from capsweep.data.windows import Windows
from capsweep.errors import ConfigError

DIAGONAL, SIGNS = (1, 2, 3), (-1, 1)  # shifts of 12 of the 13 crops: sizes in pixels; signs


class ShiftedImages(DeviceSplit):
    """Images that are shifted at random by whole pixels in training; gaps are filled with zeros.

    The papers on capsules train on MNIST in this way, with shifts of up to 2 pixels.

    Args:
        examples: Images [N, C, H, W] and labels [N], on the training device.
        split: Name of the split. Test images are never shifted.
        shift: Largest shift in pixels along each axis.
        canvas: Side in pixels of a square canvas. Each image is placed in the middle of the
            canvas. None keeps the size of the images.
        moved_validation: Whether validation images are shifted too, to be like the training images.
            Each validation image then has one fixed shift.

    Raises:
        ConfigError: If the canvas is smaller than the images.
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
        self.windows = Windows.at_shifts(examples.images_NCHW, self.shift, canvas)
        self.images_NCHW = self.windows.view[:, :, self.shift, self.shift]
        if is_validation_moved:
            address_N = self.windows.draw(generator_of("validation", shift))
            self.images_NCHW = self.windows.copy(address_N)

    def __len__(self) -> int:
        return len(self.labels_N)

    def prepare_epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """Draw a shift for each example; see `DeviceSplit.prepare_epoch`."""
        address_N = self.windows.draw(generator_of(seed, "shift", epoch))

        def make_batch(index_B: Tensor) -> Batch:
            images_BCHW = self.windows.copy(address_N.index_select(0, index_B))
            return Batch(to_unit(images_BCHW), self.labels_N.index_select(0, index_B))

        return make_batch

    def evaluation_batch(self, part: slice) -> Batch:
        """Return examples in their fixed order; see `EvaluatedSplit.evaluation_batch`."""
        return Batch(to_unit(self.images_NCHW[part]), self.labels_N[part])


class CroppedImages(DeviceSplit):
    """Images that are cropped at random positions and randomly changed in training.

    In validation and test, the middle crop of each image is used without changes.

    Args:
        examples: Square images [N, C, H, W] and labels [N], on the training device.
        split: Name of the split.
        crop: Side of a square crop in pixels.
        flip: Whether a training image is mirrored left to right with probability 1/2.
        brightness: Largest change of the intensities 0..255. For each training image, a number is
            drawn from -brightness .. brightness and added to all intensities.
        contrast: Lowest and highest contrast factor. For each training image, a factor is drawn
            from this range. The factor multiplies the difference between each intensity and the
            mean of its channel.
        mean_over: Pixels over which the mean of a channel is computed for the contrast: "image"
            (the whole image) or "crop" (only the crop).
        standardise: Whether each crop is scaled to mean 0 and standard deviation 1 at the end. If
            not, intensities 0..255 are scaled to 0..1.
        pad: Number of black pixels that are added to each side of an image before it is cropped.

    Raises:
        ConfigError: If the images are not square, or if they are smaller than a crop.
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
        pad: int = 0,
    ) -> None:
        self.labels_N, self.device = examples.labels_N, examples.labels_N.device
        images_NCHW = examples.images_NCHW
        if pad:
            images_NCHW = F.pad(images_NCHW, [pad] * 4)
        height, width = images_NCHW.shape[2:]
        if height != width or crop > width:
            padded = f" with dataset.batches.pad={pad}" if pad else ""
            raise ConfigError(
                f"dataset.batches.crop={crop}: images must be square and at least as large as a "
                f"crop, but are {height}x{width}{padded}"
            )
        self.slack = width - crop
        self.windows = Windows(images_NCHW.unfold(2, crop, 1).unfold(3, crop, 1))
        self.flip, self.brightness, self.standardise = flip, brightness, standardise
        self.lowest, self.highest = contrast
        self.mean_NC = None
        if split == "train" and mean_over == "image":
            self.mean_NC = images_NCHW.float().mean(dim=(2, 3))

    def __len__(self) -> int:
        return len(self.labels_N)

    def prepare_epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """Draw a crop and its changes for each example; see `DeviceSplit.prepare_epoch`."""
        generator = generator_of(seed, "crop", epoch)
        address_N = self.windows.draw(generator)
        flip_N, brightness_N, contrast_N = self._draw_jitter(generator)

        def make_batch(index_B: Tensor) -> Batch:
            images_BCHW = self.windows.copy(address_N[index_B]).float()
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
        """Return the middle crops of examples in order; see `EvaluatedSplit.evaluation_batch`."""
        return self._make_batch(self.crop_pixels(part), part)

    def crop_pixels(self, part: slice) -> Tensor:
        """Return the middle crops of examples in order, uint8 [B, C, H, W], without scaling.

        Args:
            part: Indices of the examples in the split.
        """
        middle = self.slack // 2
        return self.windows.view[part, :, middle, middle]

    def iterate_crops(self, part: slice) -> Iterator[Batch]:
        """Yield 13 batches of the same examples; each batch has another crop of the images.

        The first crop is the middle crop. The 12 others are shifted from the middle crop by 1, 2 or
        3 pixels in both axes, in each of the four diagonal directions. The intensities of each crop
        are scaled separately. The authors' code of "Matrix capsules with EM routing" (Hinton,
        Sabour, Frosst 2018) tests networks with these 13 crops.

        Args:
            part: Indices of the examples in the split.

        Yields:
            A batch for each of the 13 crops.

        Raises:
            ConfigError: If the middle crop is less than 3 pixels away from a border of the image.
        """
        middle, last = self.slack // 2, self.slack
        if min(middle, last - middle) < DIAGONAL[-1]:
            raise ConfigError(
                f"dataset.batches.crop leaves {last} pixels in each axis, but 13 crops need "
                f"{2 * DIAGONAL[-1]}; lower dataset.batches.crop"
            )
        off = [(0, 0), *((dy * k, dx * k) for k in DIAGONAL for dy in SIGNS for dx in SIGNS)]
        for dy, dx in off:
            yield self._make_batch(self.windows.view[part, :, middle + dy, middle + dx], part)

    def _make_batch(self, images_BCHW: Tensor, part: slice) -> Batch:
        return Batch(self.scale_pixels(images_BCHW.float()), self.labels_N[part])

    def _draw_jitter(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Draw the random changes of each example as three tensors [N].

        The tensors are: whether to mirror the image, the number to add to all its intensities, and
        its contrast factor.
        """
        uniform_3N = torch.rand((3, len(self)), generator=generator).to(self.device)
        flip_N = uniform_3N[0] < (0.5 if self.flip else 0.0)
        brightness_N = (2 * uniform_3N[1] - 1) * self.brightness
        contrast_N = self.lowest + uniform_3N[2] * (self.highest - self.lowest)
        return flip_N, brightness_N, contrast_N

    def scale_pixels(self, images_BCHW: Tensor) -> Tensor:
        """Scale intensities to the values that a network sees.

        Args:
            images_BCHW: float32 intensities 0..255, [B, C, H, W].

        Returns:
            Standardised images if `standardise` is set, else intensities in 0..1.
        """
        return standardise_images(images_BCHW) if self.standardise else images_BCHW / 255


class SignedImages(DeviceSplit):
    """Images of bytes that are scaled to numbers in -1..1; there are no random changes.

    A byte v becomes (2 v - 255) / 255. So the bytes v and 255 - v become
    numbers that differ exactly by their sign.

    Args:
        examples: Images [N, C, H, W] and labels [N], on the training device.
        split: Name of the split. It has no effect, because all splits are treated alike.
    """

    def __init__(self, examples: LabelledImages, split: Split) -> None:
        self.images_NCHW, self.labels_N = examples.images_NCHW, examples.labels_N
        self.device = examples.labels_N.device

    def __len__(self) -> int:
        return len(self.labels_N)

    def prepare_epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """Return the same function in every epoch; see `DeviceSplit.prepare_epoch`."""
        return self._make_batch

    def evaluation_batch(self, part: slice) -> Batch:
        """Return examples in their fixed order; see `EvaluatedSplit.evaluation_batch`."""
        return self._make_batch(part)

    def _make_batch(self, index: Tensor | slice) -> Batch:
        signed = self.images_NCHW[index].to(torch.float32).mul_(2).sub_(255).div_(255)
        return Batch(signed, self.labels_N[index])


def standardise_images(images_BCHW: Tensor) -> Tensor:
    """Scale each image to mean 0 and standard deviation 1 over all its values.

    This is TensorFlow's `per_image_standardization`: a standard deviation below
    1 / sqrt(C H W) is replaced by 1 / sqrt(C H W).

    Args:
        images_BCHW: float32 images [B, C, H, W].

    Returns:
        The scaled images [B, C, H, W].
    """
    mean_B1, deviation_B1 = compute_moments(images_BCHW)
    return ((images_BCHW.flatten(1) - mean_B1) / deviation_B1).view_as(images_BCHW)


def compute_moments(images_BCHW: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean and the standard deviation of each image over all its values.

    Args:
        images_BCHW: float32 images [B, C, H, W].

    Returns:
        The means and the standard deviations, [B, 1] each. A standard deviation below
        1 / sqrt(C H W) is replaced by 1 / sqrt(C H W).
    """
    values_BE = images_BCHW.flatten(1)
    deviation_B1 = values_BE.std(dim=1, correction=0, keepdim=True)
    lowest = 1 / math.sqrt(values_BE.shape[1])
    return values_BE.mean(dim=1, keepdim=True), deviation_B1.clamp(min=lowest)


def _per_image(value_B: Tensor) -> Tensor:
    return value_B[:, None, None, None]
