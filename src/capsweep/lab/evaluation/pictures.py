"""A user's own pictures, converted to images like those of a data set.

Shape letters: C H W image.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from capsweep.data.arrays import MOST_CHANNELS
from capsweep.data.pictures import make_rgb
from capsweep.errors import UserError
from capsweep.storage.checked import open_npz

IMAGES, LABELS = ("images", "test_images"), ("labels", "test_labels")  # arrays of an .npz file


class Picture(NamedTuple):
    """A picture that is not read yet.

    Attributes:
        name: Path of the file below the folder that the user named, or its index in an .npz file.
        label: Class of the picture: the name of its folder, or its label in an .npz file; None if
            the picture has no class.
        read: Function that reads the picture. It raises an exception if the file is no picture.
    """

    name: str
    label: str | None
    read: Callable[[], Image.Image | np.ndarray]


def list_pictures(path: Path) -> list[Picture]:
    """List the pictures of an image file, an .npz file, or a folder with all its subfolders.

    The pictures of a folder are sorted by path. Hidden files are ignored.

    Raises:
        UserError: There is no such file, the folder has no files, or the arrays of the .npz file
            are not images.
    """
    if path.suffix == ".npz" and path.is_file():
        return _list_arrays(path)
    if path.is_file():
        return [Picture(path.name, None, partial(Image.open, path))]
    below = {each: each.relative_to(path) for each in sorted(path.rglob("*")) if each.is_file()}
    files = {each: name for each, name in below.items() if not str(name).startswith(".")}
    if not files:
        fault = "the folder has no files" if path.is_dir() else "there is no such file or folder"
        cure = "name an image, a folder of images, or an .npz file"
        raise UserError(f"--file {path}: {fault}; {cure}")
    return [
        Picture(str(name), name.parent.name or None, partial(Image.open, each))
        for each, name in files.items()
    ]


def _list_arrays(path: Path) -> list[Picture]:
    try:
        with path.open("rb") as file, open_npz(file) as archive:
            images, labels = (
                next((archive[name] for name in names if name in archive.files), None)
                for names in (IMAGES, LABELS)
            )
        if images is None or images.dtype != np.uint8 or images.size == 0:
            raise ValueError(f"it needs an array {' or '.join(IMAGES)} of uint8 intensities 0..255")
        if labels is not None and labels.size != len(images):
            raise ValueError(f"it has {len(images)} images, but {labels.size} labels")
        if images.ndim not in (3, 4):
            raise ValueError(f"its images have the shape {images.shape}, not [N, H, W] or 4 axes")
        if images.ndim == 4 and images.shape[1] <= MOST_CHANNELS < images.shape[3]:
            images = images.transpose(0, 2, 3, 1)
    except Exception as error:  # zipfile and numpy can raise any error for a damaged file
        raise UserError(f"--file {path}: {error}") from error
    named = itertools.repeat(None) if labels is None else map(str, labels.ravel().tolist())
    return [
        Picture(f"{path.stem}[{index}]", label, partial(np.asarray, image))
        for index, (image, label) in enumerate(zip(images, named, strict=False))
    ]


@dataclass
class PictureConverter:
    """An object that converts pictures to images of a data set, and counts what it changed.

    Attributes:
        channels: Number of channels of the images, C.
        sizes: Allowed heights and widths. A picture of another size is resized to the first.
        is_inverted: Whether bright and dark are exchanged.
        counts: Number of pictures by change.
    """

    channels: int
    sizes: Sequence[tuple[int, int]]
    is_inverted: bool
    counts: Counter[str] = field(default_factory=Counter[str])

    def convert(self, picture: Image.Image | np.ndarray) -> np.ndarray:
        """Return a picture as a uint8 image [C, H, W].

        A picture that was taken with a turned camera is turned upright. Transparent parts become
        white. Networks with 3 channels get colours; all others get the same grey in each channel.

        Raises:
            ValueError: The picture is an array with a number of channels that cannot be converted.
        """
        if isinstance(picture, np.ndarray):
            height, width = picture.shape[:2]
            pixels_HWC = picture.reshape(height, width, -1)
            channels = pixels_HWC.shape[2]
            if channels == self.channels and (height, width) in self.sizes:
                return self._finish(pixels_HWC)
            if channels not in (1, 3, 4):
                raise ValueError(f"{channels} channels of {height}x{width}")
            picture = Image.fromarray(pixels_HWC.squeeze(2) if channels == 1 else pixels_HWC)
        image = self._convert_colours(picture)
        height, width = self.sizes[0]
        if (image.height, image.width) not in self.sizes:
            self.counts[f"resized to {height}x{width}"] += 1
            if image.height * width != image.width * height:
                self.counts["stretched, because the shape differs"] += 1
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        pixels_HWC = np.asarray(image).reshape(image.height, image.width, -1)
        return self._finish(pixels_HWC.repeat(self.channels // pixels_HWC.shape[2], axis=2))

    def _convert_colours(self, picture: Image.Image) -> Image.Image:
        is_grey = self.channels != 3
        changes = {
            "reduced from 16 to 8 bits": picture.mode.startswith("I"),
            "laid on white, because they have transparent parts": picture.has_transparency_data,
            "made grey": is_grey and picture.mode not in ("L", "LA", "1", "I", "I;16"),
        }
        self.counts.update(change for change, is_made in changes.items() if is_made)
        return make_rgb(picture).convert("L" if is_grey else "RGB")

    def _finish(self, pixels_HWC: np.ndarray) -> np.ndarray:
        return np.moveaxis(255 - pixels_HWC if self.is_inverted else pixels_HWC, 2, 0)
