"""Images and labels of one's own, in one .npz file.

`capsweep new` describes such a file and `NpzReader` reads it, both by `decode_arrays`: what one of
them accepts the other does too.

Shape letters: N examples, C H W image.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch

from capsweep.data.images import Decoded, DecodedReader, LabelledImages
from capsweep.data.official import OfficialReader
from capsweep.errors import DataError
from capsweep.storage.files import hash_open_file
from capsweep.storage.npz import Header, open_npz, read_headers
from capsweep.storage.official_files import UNKNOWN, Digest, open_content

NAMES = {"train": "train", "validation": "val", "test": "test"}  # splits, and their arrays
VALIDATION = {"val_images", "val_labels"}  # which a file may lack
LAYOUT = (
    "train_images and test_images, uint8 [N, H, W], [N, C, H, W] or [N, H, W, C], train_labels and "
    "test_labels, whole numbers from 0 on [N], and val_images and val_labels if there are any"
)
SCALE = (
    "write intensities of 0..255, of 0..1 for instance by (255 * images).round().astype('uint8')"
)
MOST_CHANNELS = 4  # of images whose axes are told by their shape
MOST_CLASSES = 10**6
MOST_NAMED = 200  # letters of a message for names of arrays
AT_ONCE = 2**24  # pixels that are looked at together
# What is left of images that were scaled before they became uint8: to 0..1, to mean 0 and deviation
# 1, where negative values wrap, or to 0..16 as the digits of scikit-learn.
FAINT = (*range(17), 253, 254, 255)


@dataclass(frozen=True)
class OwnArrays:
    """The data set in an .npz file.

    splits: the examples of "train", "test" and, where the file has some, "validation". axes: of its
    images of four axes, chw or hwc. num_classes: of all labels. unused: names of other arrays.
    """

    splits: Decoded
    axes: str
    num_classes: int
    unused: Sequence[str]


class NpzReader(OfficialReader, DecodedReader):
    """Reads the file that `sha256` names, without ending, as `decode_arrays` says.

    axes: chw or hwc, of images of four axes; None: as their shape tells.
    """

    publisher = "your own source"

    def __init__(
        self,
        sha256: Mapping[str, str],
        folders: Sequence[str],
        num_classes: int,
        axes: str | None = None,
    ) -> None:
        super().__init__(sha256, folders)
        self.name = f"arrays-{axes or 'told'}-of-{num_classes}-classes"
        self.num_classes, self.axes = num_classes, axes

    def decode_files(self, folder: str) -> Decoded:
        """Return images [N, C, H, W]. Raises DataError naming the file and the cure."""
        ((name, path),) = self.files.find_all(
            folder, {n: [f"{n}.npz"] for n in self.sha256}
        ).items()
        with open_content(path) as file:
            declared = self.sha256.get(name, UNKNOWN)
            found = hash_open_file(file)
            self.files.check_digests(Digest(path, found, declared, f"dataset.reader.sha256.{name}"))
            arrays = decode_arrays(path, file, self.axes)
        if arrays.num_classes != self.num_classes:
            raise DataError(
                f"{path}: its labels are of {arrays.num_classes} classes, and dataset.num_classes "
                f"is {self.num_classes}; correct the data set's file in conf/dataset"
            )
        return arrays.splits


def decode_arrays(path: Path, file: IO[bytes], axes: str | None = None) -> OwnArrays:
    """Return the data set in an open file. Raises DataError naming `path`, the fault and the cure.

    axes: see `NpzReader`.
    """
    try:
        return _decode_archive(file, axes)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except Exception as error:  # what is in a file of a user's can make zipfile and numpy raise any
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path}: {reason}; write it by np.savez with {LAYOUT}") from error


def _decode_archive(file: IO[bytes], axes: str | None) -> OwnArrays:
    headers = read_headers(file)
    splits = [s for s in NAMES if s != "validation" or VALIDATION & headers.keys()]
    names = [f"{NAMES[split]}_{kind}" for split in splits for kind in ("images", "labels")]
    if absent := [name for name in names if name not in headers]:
        have = ", ".join(headers) or "nothing"
        raise ValueError(f"{', '.join(absent)} not in it; it has {have[:MOST_NAMED]}")
    for name in names:
        _check_header(name, headers[name])
    _check_memory(sum(headers[name].size for name in names))  # before anything is allocated
    axes = _choose_axes(headers["train_images"].shape, axes)
    for split in splits:
        _check_shapes(split, headers)
    with open_npz(file) as arrays:
        decoded = {split: _read_split(arrays, NAMES[split], axes) for split in splits}
    classes = _count_classes(decoded)
    return OwnArrays(decoded, axes, classes, [name for name in headers if name not in names])


def _check_header(name: str, header: Header) -> None:
    """Raise DataError for an empty array, or one of a type that no images or labels have."""
    if min(header.shape, default=1) < 1:
        raise DataError(f"{name} is empty: its shape is {header.shape}; write at least one example")
    if name.endswith("images") and header.dtype != np.uint8:
        raise DataError(f"{name} are {header.dtype}, not uint8; {SCALE}")
    if name.endswith("labels") and header.dtype.kind not in "iubf":
        raise DataError(f"{name} are {header.dtype}, not numbers; number the classes from 0 on")


def _check_memory(needed: int) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise DataError(
            f"its arrays are {needed:,} bytes, and this machine has {memory:,} of memory; make "
            "fewer or smaller images, or shards, which are read as training goes "
            "(docs/how-to/shards.md)"
        )


def _choose_axes(shape: tuple[int, ...], axes: str | None) -> str:
    """Return chw or hwc, as `axes` says or as the shape of images [N, ...] tells. Raises DataError
    where it does not.
    """
    if len(shape) not in (3, 4):
        raise ValueError(f"train_images are {shape}")
    if len(shape) == 3 and axes == "hwc":
        raise DataError(f"train_images {shape} have no axis of channels; leave axes hwc out")
    if len(shape) == 3 or axes is not None:
        return axes or "chw"
    first, last = shape[1] <= MOST_CHANNELS, shape[3] <= MOST_CHANNELS
    if first == last:
        chw = f"{shape[1]} channels of {shape[2]} rows and {shape[3]} columns"
        hwc = f"{shape[3]} channels of {shape[1]} rows and {shape[2]} columns"
        raise DataError(
            f"train_images {shape} can be {chw}, or {hwc}; say which by --axes chw or --axes hwc "
            "(in the data set's file: `axes: chw` or `axes: hwc` below `reader`)"
        )
    return "chw" if first else "hwc"


def _check_shapes(split: str, headers: Mapping[str, Header]) -> None:
    images, labels = (headers[f"{NAMES[split]}_{kind}"].shape for kind in ("images", "labels"))
    first = headers["train_images"].shape
    if images[1:] != first[1:]:
        raise DataError(
            f"images of train are {list(first[1:])}, those of {NAMES[split]} "
            f"{list(images[1:])}; make them alike"
        )
    if len(labels) != 1 and (len(labels) != 2 or labels[1] != 1):
        raise DataError(
            f"{NAMES[split]}_labels are {labels}, not [N] or [N, 1]; of rows with a single 1 "
            "take labels.argmax(1)"
        )
    if images[0] != labels[0]:
        text = f"{NAMES[split]} has {images[0]} images and {labels[0]} labels; write one for each"
        raise DataError(text)


def _read_split(arrays: Mapping[str, np.ndarray], name: str, axes: str) -> LabelledImages:
    images, labels_N = arrays[f"{name}_images"], arrays[f"{name}_labels"].reshape(-1)
    _check_pixels(f"{name}_images", images)
    _check_labels(f"{name}_labels", labels_N)
    if images.ndim == 3:
        images = images[:, None]
    elif axes == "hwc":
        images = images.transpose(0, 3, 1, 2)
    images_NCHW = torch.from_numpy(np.ascontiguousarray(images))
    return LabelledImages(images_NCHW, torch.from_numpy(labels_N.astype(np.int64)))


def _check_pixels(name: str, images: np.ndarray) -> None:
    """Raise DataError for images that show nothing, or next to nothing. Large arrays are looked at
    in parts.
    """
    step = max(1, AT_ONCE // images[0].size)
    parts = [images[start : start + step] for start in range(0, len(images), step)]
    if len(images) > 1 and all((part == images[0]).all() for part in parts):
        raise DataError(f"{name} are all alike; write the images themselves")
    if all(np.isin(part, FAINT).all() for part in parts):
        values = sorted(set().union(*(np.unique(part).tolist() for part in parts)))
        if not {*values} <= {0, 255}:
            raise DataError(
                f"{name} use {', '.join(map(str, values))} alone, as images do that were scaled "
                f"before they became uint8; {SCALE}"
            )


def _check_labels(name: str, labels_N: np.ndarray) -> None:
    is_whole = np.isfinite(labels_N) & (np.floor(labels_N) == labels_N)
    if not is_whole.all():
        raise DataError(
            f"{name} has {labels_N[~is_whole][0]}, no whole number; number the classes from 0 on"
        )
    low, high = labels_N.min().item(), labels_N.max().item()
    if low < 0 or high >= MOST_CLASSES:
        raise DataError(
            f"{name} are {low}..{high}; classes count from 0, {MOST_CLASSES:,} of them at most"
        )


def _count_classes(splits: Decoded) -> int:
    classes = max(int(examples.labels_N.max()) for examples in splits.values()) + 1
    if classes < 2:
        raise DataError("every label is 0; a data set has two classes or more")
    unseen = np.setdiff1d(np.arange(classes), splits["train"].labels_N.numpy())
    if len(unseen):
        raise DataError(f"no training example of class {unseen[0]}; classes count from 0")
    return classes
