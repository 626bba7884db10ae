"""Reader of data sets that a user supplies as one .npz file.

`capsweep new` writes the configuration for such a file, and `NpzReader` reads the file. Both call
`decode_arrays`, so that they accept the same files.

Shape letters: N examples, C H W image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch

from capsweep.config import package_files
from capsweep.data.images import LabelledImages
from capsweep.data.official import Decoded, OfficialReader
from capsweep.errors import DataError
from capsweep.storage.checked import open_npz
from capsweep.storage.files import hash_open_file
from capsweep.storage.official_files import Digest, open_content

NAMES = {"train": "train", "validation": "val", "test": "test"}  # prefix of array names, by split
VALIDATION = {"val_images", "val_labels"}  # optional arrays
LAYOUT = (
    "train_images and test_images (uint8 [N, H, W], [N, C, H, W] or [N, H, W, C]), train_labels "
    "and test_labels (whole numbers from 0 on, [N]), and val_images and val_labels if there are any"
)
SCALE = "write intensities 0..255 (if yours are 0..1: (255 * images).round().astype('uint8'))"
MOST_CHANNELS = 4  # largest size of an axis of channels, if the order of axes is inferred
MOST_CLASSES = 10**6
MOST_NAMED = 200  # largest number of characters of a list of array names in a message
MOST_SEEN = 1000  # number of images per split whose values are checked
# Images that have only these values were probably scaled before the conversion to uint8: to 0..1,
# to mean 0 and deviation 1 (negative values wrap around), or to 0..16 (like scikit-learn's digits).
# Images that have only 0 and 255 are accepted.
FAINT = {*range(17), 253, 254, 255}


@dataclass(frozen=True)
class NpzContent:
    """The data set in an .npz file.

    Attributes:
        splits: The examples of "train", "test" and, if the file has this split, "validation".
        axes: Order of the axes of the images in the file: "chw" (channels first, or images without
            an axis of channels) or "hwc" (channels last).
        num_classes: Number of classes: the largest label in all splits, plus 1.
        unused: Names of the arrays in the file that the reader ignores.
    """

    splits: Decoded
    axes: str
    num_classes: int
    unused: Sequence[str]


class NpzReader(OfficialReader):
    """A reader of one .npz file with the arrays that `decode_arrays` describes.

    Args:
        sha256: The sha256 of the file. The key is the name of the file without .npz.
        folders: Where to look for the file if it is not in `conf/dataset`: names of folders below
            the data folder.
        num_classes: The number of classes that the labels must have.
        axes: Order of the axes of images with channels: "chw" (channels first) or "hwc" (channels
            last). None infers the order from the shape.
    """

    publisher = "your own source"

    def __init__(
        self,
        sha256: Mapping[str, str],
        folders: Sequence[str],
        num_classes: int,
        axes: str | None = None,
    ) -> None:
        super().__init__(sha256, [str(package_files.find_folder("conf") / "dataset"), *folders])
        self.name = f"arrays-{axes or 'told'}-of-{num_classes}-classes"
        self.num_classes, self.axes = num_classes, axes

    def decode_files(self, folder: str) -> Decoded:
        """Read the splits, with uint8 images [N, C, H, W], from the file.

        Args:
            folder: The data folder, a path or the URL of an object store.

        Raises:
            DataError: If the file is missing, if its hash is not the declared one, if its labels do
                not have `num_classes` classes, or if `decode_arrays` refuses its arrays.
            StoreError: If the object store does not answer.
        """
        ((name, declared),) = self.sha256.items()
        path = self.files.find_all(folder, {name: [f"{name}.npz"]})[name]
        with open_content(path) as file:
            key = f"dataset.reader.sha256.{name}"
            self.files.check_digests(Digest(path, hash_open_file(file), declared, key))
            arrays = decode_arrays(path, file, self.axes)
        if arrays.num_classes != self.num_classes:
            raise DataError(
                f"{path}: its labels have {arrays.num_classes} classes, but dataset.num_classes "
                f"is {self.num_classes}; correct the file of the data set in conf/dataset"
            )
        return arrays.splits


def decode_arrays(path: Path, file: IO[bytes], axes: str | None = None) -> NpzContent:
    """Read and check the data set in an open .npz file.

    The file has the arrays `train_images` and `test_images`, which are uint8 [N, H, W],
    [N, C, H, W] or [N, H, W, C]. It also has the arrays `train_labels` and `test_labels`, which are
    whole numbers from 0 on, [N] or [N, 1]. The arrays `val_images` and `val_labels` are optional. A
    file with one of these two arrays must also have the other.

    Args:
        path: Path of the file, for messages.
        file: The file, open for reading.
        axes: Order of the axes of images with channels: "chw" (channels first) or "hwc" (channels
            last). None infers the order from the shape.

    Returns:
        The content of the file, with images [N, C, H, W].

    Raises:
        DataError: If the file is damaged, if an array is missing, or if the dtype, the shape or the
            values of an array are not possible for images or labels. Also if all labels are 0, if a
            class has no training example, or if the order of the axes cannot be inferred.
    """
    try:
        return _decode_archive(file, axes)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except Exception as error:  # zipfile and numpy can raise any error for a damaged file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path}: {reason}; save by np.savez: {LAYOUT}") from error


def _decode_archive(file: IO[bytes], axes: str | None) -> NpzContent:
    with open_npz(file) as archive:
        present = archive.files
        splits = [split for split in NAMES if split != "validation" or VALIDATION & {*present}]
        names = [f"{NAMES[split]}_{kind}" for split in splits for kind in ("images", "labels")]
        if absent := [name for name in names if name not in present]:
            have = ", ".join(present) or "nothing"
            raise ValueError(f"it has no {', '.join(absent)}; it has {have[:MOST_NAMED]}")
        arrays = {name: archive[name] for name in names}
    shape = arrays["train_images"].shape
    axes = choose_axes(shape, axes)
    decoded = {split: _make_split(arrays, NAMES[split], shape[1:], axes) for split in splits}
    unused = [name for name in present if name not in names]
    return NpzContent(decoded, axes, _count_classes(decoded), unused)


def choose_axes(shape: tuple[int, ...], axes: str | None) -> str:
    """Return `axes` if it is not None; otherwise infer the order from the images' shape.

    If `axes` is None and images have three axes, the axis of the channels is the first or the last
    axis, whichever has a size of at most MOST_CHANNELS.

    Args:
        shape: The shape of the images, with the axis of the examples.
        axes: Order of the axes, "chw" or "hwc"; None to infer the order.

    Raises:
        ValueError: If `shape` is not possible for images in the order `axes`.
        DataError: If `axes` is None, and both axes or neither axis can be that of the channels.
    """
    if len(shape) not in (3, 4) or (len(shape) == 3 and axes == "hwc"):
        raise ValueError(f"train_images have the shape {shape}")
    if len(shape) == 3 or axes is not None:
        return axes or "chw"
    first, last = shape[1] <= MOST_CHANNELS, shape[3] <= MOST_CHANNELS
    if first == last:
        chw = f"{shape[1]} channels of {shape[2]} rows and {shape[3]} columns"
        hwc = f"{shape[3]} channels of {shape[1]} rows and {shape[2]} columns"
        raise DataError(
            f"train_images {shape} can be {chw}, or {hwc}; type --axes chw or --axes hwc (in the "
            "file of the data set: `axes: chw` or `axes: hwc` below `reader`)"
        )
    return "chw" if first else "hwc"


def _make_split(
    arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...], axes: str
) -> LabelledImages:
    images, labels = arrays[f"{name}_images"], arrays[f"{name}_labels"]
    _check_images(f"{name}_images", images, shape)
    _check_labels(f"{name}_labels", labels, len(images))
    if images.ndim == 3:
        images = images[:, None]
    elif axes == "hwc":
        images = images.transpose(0, 3, 1, 2)
    images_NCHW = torch.from_numpy(np.ascontiguousarray(images))
    return LabelledImages(images_NCHW, torch.from_numpy(labels.reshape(-1).astype(np.int64)))


def _check_images(name: str, images: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise DataError if an array does not hold uint8 images of the expected shape.

    Only the first MOST_SEEN images are checked for their values. If there are two or more, they
    must not all be identical. Images that have only values of FAINT are refused, because they were
    probably scaled before the conversion to uint8. Images that have only 0 and 255 are accepted.
    """
    if images.size == 0:
        raise DataError(f"{name} is empty: its shape is {images.shape}; write at least one example")
    if images.dtype != np.uint8:
        raise DataError(f"{name} are {images.dtype}, not uint8; {SCALE}")
    if images.shape[1:] != shape:
        raise DataError(
            f"{name} are {[*images.shape[1:]]} each, but train_images {[*shape]}; make shapes equal"
        )
    seen = images[:MOST_SEEN]
    if len(seen) > 1 and (seen == seen[0]).all():
        raise DataError(f"{name} are all identical; write the real images")
    values = set(np.unique(seen).tolist())
    if values <= FAINT and not values <= {0, 255}:
        raise DataError(
            f"{name} have only the values {', '.join(map(str, sorted(values)))}, as if they were "
            f"scaled before the conversion to uint8; {SCALE}"
        )


def _check_labels(name: str, labels: np.ndarray, count: int) -> None:
    """Raise DataError if an array does not hold `count` labels that are whole numbers from 0 on."""
    if labels.dtype.kind not in "iubf" or labels.shape not in ((count,), (count, 1)):
        raise DataError(
            f"{name} are {labels.dtype} {labels.shape} for {count} images; write one class per "
            "image (from one-hot rows: labels.argmax(1))"
        )
    numbers = labels.astype(np.float64)
    is_class = (np.floor(numbers) == numbers) & (numbers >= 0) & (numbers < MOST_CLASSES)
    if not is_class.all():
        raise DataError(
            f"{name} has {labels[~is_class][0]}; classes are whole numbers from 0 on, below "
            f"{MOST_CLASSES:,}"
        )


def _count_classes(splits: Decoded) -> int:
    classes = max(int(examples.labels_N.max()) for examples in splits.values()) + 1
    if classes < 2:
        raise DataError("every label is 0; a data set needs two or more classes")
    unseen = np.setdiff1d(np.arange(classes), splits["train"].labels_N.numpy())
    if len(unseen):
        raise DataError(f"no training example has class {unseen[0]}; use 0, 1, 2, ... as labels")
    return classes
