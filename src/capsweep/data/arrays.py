"""Reader of data sets that a user supplies as one .npz file.

`capsweep new` writes such a file and its configuration, and `NpzReader` reads the file. Both call
`check_splits`, so that they accept the same images and labels.

Shape letters: N examples, C H W image.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib.npyio import NpzFile

from capsweep.config import package_files
from capsweep.data.images import LabelledImages, label_images
from capsweep.data.official import Decoded, OfficialReader
from capsweep.errors import DataError
from capsweep.storage.checked import open_npz

NAMES = {"train": "train", "validation": "val", "test": "test"}  # prefix of array names, by split
# How the arrays of images and labels may be called: as in MedMNIST, or as in Keras.
PAIRS = (("{}_images", "{}_labels"), ("x_{}", "y_{}"))
AXES = "axes"  # name of the array that tells the order of the axes of images, if there is one
ORDERS = {"chw": (0, 1, 2, 3), "hwc": (0, 3, 1, 2)}  # places of N, C, H and W, by order of the axes
LAYOUT = (
    "train_images and test_images (uint8 [N, H, W], [N, C, H, W] or [N, H, W, C]), train_labels "
    "and test_labels (whole numbers from 0 on, [N]), and val_images and val_labels if there are any"
)
SCALE = "write intensities 0..255 (if yours are 0..1: (255 * images).round().astype('uint8'))"
MOST_CHANNELS = 4  # largest size of an axis of channels, if the order of axes is inferred
MOST_NAMED = 200  # largest number of characters of a list of array names in a message
MOST_SEEN = 1000  # number of images per split whose values are checked
# Images that have only these values were probably scaled before the conversion to uint8: to 0..1,
# to mean 0 and deviation 1 (negative values wrap around), or to 0..16 (like scikit-learn's digits).
# Images that have only 0 and 255 are accepted.
FAINT = {*range(17), 253, 254, 255}


Labelled = tuple[np.ndarray, np.ndarray]  # images [N, ...] and labels [N]


@dataclass(kw_only=True)
class NpzReader(OfficialReader):
    """A reader of one .npz file with the arrays that LAYOUT describes.

    Attributes:
        sha256: The sha256 of the file. The key is the name of the file without .npz.
        folders: Where to look for the file if it is not in `conf/dataset`: names of folders below
            the data folder.
        num_classes: The number of classes that the labels must have.
        axes: Order of the axes of images with channels; see `read_images`.
    """

    num_classes: int
    axes: str | None = None
    publisher = "conf/dataset of the clone in which `make new` wrote it"

    def __post_init__(self) -> None:
        self.name = f"arrays-{self.axes or 'told'}-of-{self.num_classes}-classes"
        self.folders = [str(package_files.find_folder("conf") / "dataset"), *self.folders]
        super().__post_init__()

    def decode_files(self, folder: str) -> Decoded:
        """Read the splits, with uint8 images [N, C, H, W], from the file.

        Args:
            folder: The data folder, a path or the URL of an object store.

        Raises:
            DataError: If the file is missing, if its hash is not the declared one, or if
                `read_arrays` or `check_splits` refuses its arrays.
            StoreError: If the object store does not answer.
        """
        ((path, data),) = self.read_verified(folder, self.sha256, ".npz").values()
        splits, unused = read_arrays(path, io.BytesIO(data), self.axes)
        if "test" not in splits:
            raise DataError(f"{path}: it has no test_images, but {', '.join(unused) or LAYOUT}")
        return check_splits(path, splits, self.num_classes)


def read_arrays(
    path: Path, file: IO[bytes], axes: str | None = None
) -> tuple[dict[str, Labelled], list[str]]:
    """Read the images and labels in an open .npz file.

    Args:
        path: Path of the file, for messages.
        file: The file, open for reading.
        axes: Order of the axes of images with channels; see `read_images`.

    Returns:
        Images [N, C, H, W] and labels by split, and the names of all other arrays.

    Raises:
        DataError: If the file is damaged, if it has no training images, if it has images without
            labels or labels without images, or if the order of the axes cannot be inferred.
    """
    try:
        with open_npz(file) as archive:
            names = _find_names(archive.files)
            splits = {s: (read_images(archive, i, axes), archive[k]) for s, (i, k) in names.items()}
            used = {AXES, *(name for pair in names.values() for name in pair)}
            return splits, [name for name in archive.files if name not in used]
    except Exception as error:  # zipfile and numpy can raise any error for a damaged file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path}: {reason}; save by np.savez: {LAYOUT}") from error


def read_images(archive: NpzFile, name: str, axes: str | None = None) -> np.ndarray:
    """Read images from an open .npz file, and put the axis of their channels first.

    Args:
        archive: The file.
        name: Name of the array.
        axes: Order of the axes of images with channels: "chw" (channels first) or "hwc" (channels
            last). None takes the array `axes` of the file. If there is none, the axis of the
            channels is the first or the last, whichever has a size of at most MOST_CHANNELS.

    Returns:
        Images [N, C, H, W], of any dtype.

    Raises:
        ValueError: If the array cannot have images, or if the order of its axes is not told.
        Exception: If the file is damaged or tells another order; the error can be of any type.
    """
    images = archive[name]
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4:
        raise ValueError(f"{name} have the shape {images.shape}")
    if axes is None and AXES in archive.files:
        axes = str(archive[AXES])
    _, one, two, three = images.shape
    if axes is None and (one <= MOST_CHANNELS) == (three <= MOST_CHANNELS):
        raise ValueError(
            f"{name} {images.shape} can be {one} channels of {two} rows and {three} columns, or "
            f"{three} channels of {one} rows and {two} columns; store which, as axes='chw' or "
            "axes='hwc': np.savez(FILE, **np.load(FILE), axes='chw')"
        )
    return images.transpose(ORDERS[axes or ("hwc" if three <= MOST_CHANNELS else "chw")])


def _find_names(present: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the names of the images and labels of each split that a file has."""
    have = (", ".join(present) or "nothing")[:MOST_NAMED]
    found: dict[str, tuple[str, str]] = {}
    for split, prefix in NAMES.items():
        for images, labels in PAIRS:
            pair = images.format(prefix), labels.format(prefix)
            absent = [name for name in pair if name not in present]
            if len(absent) == 1:
                raise ValueError(f"it has no {absent[0]}; it has {have}")
            if not absent:
                found[split] = pair
    if "train" not in found:
        raise ValueError(f"it has no train_images; it has {have}")
    return found


def check_splits(path: Path, splits: Mapping[str, Labelled], num_classes: int) -> Decoded:
    """Check images and labels, and convert them to examples.

    Args:
        path: Path of the file or folder from which they were read, for messages.
        splits: For each split, images uint8 [N, C, H, W], and labels [N] or [N, 1].
        num_classes: The number of classes; the labels are whole numbers below it.

    Raises:
        DataError: If the dtype, the shape or the values of images or labels are not possible. Also
            if there is one class only, or if a class has no training example.
    """
    shape = splits["train"][0].shape[1:]
    try:
        decoded = {
            split: _make_split(name, *splits[split], shape, num_classes)
            for split, name in NAMES.items()
            if split in splits
        }
        check_classes(decoded, num_classes)
    except ValueError as error:  # also a DataError
        raise DataError(f"{path}: {error}") from error
    return decoded


def _make_split(
    name: str, images: np.ndarray, labels: np.ndarray, shape: Sequence[int], classes: int
) -> LabelledImages:
    _check_images(f"{name}_images", images, shape)
    if labels.dtype.kind not in "iubf" or labels.shape not in ((len(images),), (len(images), 1)):
        raise DataError(
            f"{name}_labels are {labels.dtype} {labels.shape} for {len(images)} images; write one "
            "class per image (from one-hot rows: labels.argmax(1))"
        )
    return label_images(images, labels.reshape(-1), classes)


def _check_images(name: str, images: np.ndarray, shape: Sequence[int]) -> None:
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


def check_classes(splits: Decoded, num_classes: int) -> None:
    """Check that there are several classes, and that each has a training example.

    Args:
        splits: The examples by split.
        num_classes: The number of classes.

    Raises:
        DataError: If there is one class only, or if a class has no training example.
    """
    if num_classes < 2:
        raise DataError("all images have the same class; a data set needs two or more classes")
    unseen = np.setdiff1d(np.arange(num_classes), splits["train"].labels_N.numpy())
    if len(unseen):
        raise DataError(f"no training example has class {unseen[0]}; use 0, 1, 2, ... as labels")
