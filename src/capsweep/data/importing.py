"""Import images and labels, in the forms in which people have them, into one .npz file.

The forms are a folder of pictures (`pictures.py`), a CSV file with a line for each image, the four
files of MNIST's format IDX, and an .npz file. `NpzReader` reads the file that is written.
"""

import csv
import io
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from capsweep.config.validation import check_resolved
from capsweep.data.arrays import NAMES, NpzContent, choose_axes, decode_arrays
from capsweep.data.digits import decode_idx
from capsweep.data.images import VALIDATION_SEED, draw_stratified
from capsweep.data.pictures import Found, Labelled, Size, find_splits, read_pictures
from capsweep.errors import DataError, UserError
from capsweep.storage.checked import open_npz
from capsweep.storage.files import (
    hash_open_file,
    lock_file,
    open_plain_file,
    read_plain_file,
    write_atomically,
)

IDX = re.compile(r"(.*?)(train|t10k|test)[-.](images|labels)[-.]idx[13][-.]ubyte(\.gz)?")
LABEL = ("label", "labels", "class", "target")  # names of the column of labels, in small letters
TAKEN = (
    "--file takes a folder with a folder of pictures for each class (also below train/ and test/), "
    "a .csv file with a column `label`, IDX files such as train-images-idx3-ubyte.gz or their "
    "folder, or an .npz file with train_images and train_labels"
)
# Names of images and labels in an .npz file: those of MedMNIST, and those of Keras.
ARRAYS = (("{}_images", "{}_labels"), ("x_{}", "y_{}"))
MOST_LETTERS = 200  # of a list of names of arrays in a message

Part = float | Path  # a share of the training images, or other data of the same form


@dataclass(frozen=True)
class Request:
    """What to import.

    Attributes:
        source: The file or folder.
        test: The test images, if the source has none; None if it has some.
        validation: The validation images, if the source has none; None for none.
        size: Height and width to which images are stretched; None: as they are.
        axes: Order of the axes of images with channels, `chw` or `hwc`; None to infer the order.
    """

    source: Path
    test: Part | None = None
    validation: Part | None = None
    size: Size | None = None
    axes: str | None = None

    @property
    def parts(self) -> dict[str, Part]:
        """The test and validation images that the source does not have, by split."""
        named = {"test": self.test, "validation": self.validation}
        return {split: part for split, part in named.items() if part is not None}


@dataclass(frozen=True)
class Imported:
    """A data set that was imported.

    Attributes:
        sha256: The sha256 of the written file.
        content: What the written file has.
        class_names: The name of each class, in the order of the labels.
        left_out: What was not imported, a line each.
    """

    sha256: str
    content: NpzContent
    class_names: list[str]
    left_out: list[str]


def import_data(request: Request, target: Path) -> Imported:
    """Read images and labels, write them to an .npz file, and read this file again.

    Args:
        request: What to import.
        target: The .npz file to write, atomically.

    Raises:
        DataError: The data cannot be imported; the message says why, and what to type.
        OSError: A file cannot be read or written.
    """
    source = request.source
    try:
        found = _read_splits(request)
        splits, class_names = _number_classes(found.splits)
        for split, part in request.parts.items():
            if isinstance(part, float):
                splits["train"], splits[split] = _draw_part(*splits["train"], part)
        arrays = _name_arrays(splits, found.axes or request.axes, request.size)
    except UserError:
        raise
    except Exception as error:  # numpy, gzip and zipfile raise any error for a damaged file
        if isinstance(error, OSError) and error.filename is not None:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{source}: it cannot be imported: {reason}") from error
    with lock_file(target):
        write_atomically(target, lambda file: np.savez(file, allow_pickle=False, **arrays))
    try:
        with open_plain_file(target) as file:
            sha256 = hash_open_file(file)
            content = decode_arrays(source, file, "chw")
    except DataError:
        target.unlink()
        raise
    return Imported(sha256, content, class_names, found.left_out)


def _read_splits(request: Request) -> Found:
    """Read the images and labels of all splits, except those that are drawn later.

    Raises:
        DataError: A split is missing or is there twice, or its content is not valid.
        Exception: A file is damaged; numpy, gzip and zipfile raise many types of errors.
    """
    source, paths = request.source, {k: v for k, v in request.parts.items() if isinstance(v, Path)}
    if source.is_dir() and not _list_idx(source):
        left_out: list[str] = []
        folders = find_splits(source, left_out)
        _check_splits(request, folders)
        for split, path in paths.items():
            folders[split] = _take_only(path, find_splits(path, left_out))
        return read_pictures(folders, request.size, left_out)
    found = _read_file(source, request.axes)
    _check_splits(request, found.splits)
    for split, path in paths.items():
        found.splits[split] = _take_only(path, _read_file(path, request.axes).splits)
    return found


def _check_splits(request: Request, splits: Collection[str]) -> None:
    """Check, before pictures are decoded, that each split is there or named, and not both.

    Raises:
        DataError: There are two sources of a split, or no test images.
    """
    source = request.source
    if twice := [split for split in request.parts if split in splits]:
        raise DataError(
            f"{source} has {twice[0]} images already; leave out --{twice[0]}, or type --file "
            "with the path of the training images"
        )
    if "test" not in {*splits, *request.parts}:
        raise DataError(
            f"{source} has no test images with labels; type --test 0.2 to draw a fifth of "
            "each class, or --test PATH"
        )


def _take_only(path: Path, splits: Mapping[str, Any]) -> Any:
    """Return the only split of a file or folder; raise DataError if it has several."""
    if [*splits] != ["train"]:
        raise DataError(f"{path} has {', '.join(splits)}; name a file or folder without splits")
    return splits["train"]


def _read_file(path: Path, axes: str | None) -> Found:
    if _list_idx(path) if path.is_dir() else IDX.fullmatch(path.name):
        return _read_idx_files(path)
    if path.suffix == ".csv":
        return _read_csv(path, axes)
    if path.suffix == ".npz":
        return _read_npz(path)
    path.stat()  # raises OSError if there is no file
    is_packed = path.suffix in (".zip", ".gz", ".tar", ".tgz", ".rar", ".7z")
    raise DataError(f"{path}: {'unpack it, and name its folder' if is_packed else TAKEN}")


def _draw_part(images: np.ndarray, labels: np.ndarray, share: float) -> tuple[Labelled, Labelled]:
    """Draw a share of the images, stratified by class, with a fixed seed.

    Returns:
        The remaining images, and the drawn images, both in their order.
    """
    count = max(1, round(share * len(labels)))
    is_drawn = np.zeros(len(labels), bool)
    is_drawn[draw_stratified(labels, count, VALIDATION_SEED)] = True
    rest, drawn = ((images[chosen], labels[chosen]) for chosen in (~is_drawn, is_drawn))
    return rest, drawn


def _number_classes(splits: dict[str, Labelled]) -> tuple[dict[str, Labelled], list[str]]:
    """Replace labels by numbers from 0, in the order of the training labels.

    Returns:
        The splits with numbered labels, and the names of the classes.

    Raises:
        ValueError: Labels have several columns, or a class has no training image.
        ConfigError: The name of a class has a `${`, as if it were a key.
    """
    numbered, names = {}, np.array([])
    for split in sorted(splits, key=lambda split: split != "train"):
        images, labels = splits[split]
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.ndim != 1 or len(labels) != len(images):
            raise ValueError(
                f"the {split} labels have the shape {labels.shape} for {len(images):,} images, but "
                "capsweep needs one class for each image (from one-hot rows: labels.argmax(1))"
            )
        if split == "train":
            names = np.unique(labels)
        if len(unseen := np.setdiff1d(labels, names)):
            raise ValueError(f"no training image has the class {unseen[0]}, but {split} has it")
        numbered[split] = images, np.searchsorted(names, labels)
    class_names = [str(name).removesuffix(".0") for name in names]
    check_resolved("the name of a class", class_names)
    return numbered, class_names


def _name_arrays(
    splits: Mapping[str, Labelled], axes: str | None, size: Size | None
) -> dict[str, np.ndarray]:
    """Return the arrays of the file to write; its images are [N, C, H, W], of the given size."""
    axes = choose_axes(splits["train"][0].shape, axes)
    arrays = {}
    for split, (images, labels) in splits.items():
        if images.ndim == 3:
            images = images[:, None]
        elif axes == "hwc":
            images = images.transpose(0, 3, 1, 2)
        if size is not None and images.shape[2:] != size and images.dtype == np.uint8:
            images_NCHW = torch.from_numpy(np.ascontiguousarray(images))
            images = F.interpolate(images_NCHW, size, mode="bilinear", antialias=True).numpy()
        arrays[f"{NAMES[split]}_images"] = images
        arrays[f"{NAMES[split]}_labels"] = labels
    return arrays


def _read_npz(path: Path) -> Found:
    """Read the arrays of an .npz file that have one of the names in ARRAYS."""
    splits, used = {}, set()
    with open_plain_file(path) as file, open_npz(file) as archive:
        for split, prefix in NAMES.items():
            taken = [(images.format(prefix), labels.format(prefix)) for images, labels in ARRAYS]
            if pair := next((pair for pair in taken if {*pair} <= {*archive.files}), None):
                splits[split] = archive[pair[0]], archive[pair[1]]
                used |= {*pair}
        unused = ", ".join(name for name in archive.files if name not in used)[:MOST_LETTERS]
    if "train" not in splits:
        have = unused or "nothing"
        raise DataError(f"{path}: it has no train_images with train_labels; it has {have}")
    return Found(splits, [f"arrays of {path.name}: {unused}"] if unused else [])


def _read_csv(path: Path, axes: str | None) -> Found:
    """Read a CSV file that has an image in each line: its label, and the values of its pixels.

    The column of the labels is found by its name. If the file has no line of names, the first
    column has the labels. Three values for each pixel are colours.
    """
    with open_plain_file(path) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as file:
        names = [name.strip().lower() for name in next(csv.reader(file), [])]
        has_names = not all(name.isdecimal() for name in names)
        columns = [place for place, name in enumerate(names) if name in LABEL] if has_names else [0]
        if len(columns) != 1:
            raise DataError(
                f"{path}: its first line names no column `label` (a test file of Kaggle has no "
                "labels, so no error can be computed from it); type --test 0.2 to draw test images "
                "from a file with labels"
            )
        pixels = [place for place in range(len(names)) if place not in columns]
        side, channels = math.isqrt(len(pixels)), 1
        if side**2 != len(pixels):
            side, channels = math.isqrt(len(pixels) // 3), 3
        if channels * side**2 != len(pixels):
            raise DataError(
                f"{path}: {len(pixels):,} columns of pixels are no square image; put the images as "
                "pictures into a folder for each class"
            )
        options = {"delimiter": ",", "quotechar": '"', "comments": None, "skiprows": int(has_names)}
        file.seek(0)
        images = np.loadtxt(file, np.uint8, usecols=pixels, ndmin=2, **options)
        file.seek(0)
        labels = np.loadtxt(file, str, usecols=columns, ndmin=1, **options)
    axes = axes or "hwc"
    images = images.reshape(
        -1, *((side, side, channels) if axes == "hwc" else (channels, side, side))
    )
    are_numbers = all(label.isdecimal() for label in labels)
    return Found({"train": (images, labels.astype(int) if are_numbers else labels)}, axes=axes)


def _list_idx(folder: Path) -> dict[str, dict[str, Path]]:
    """Return the IDX files of a folder, by the name of the data set, and by split and kind."""
    files: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir(), reverse=True):  # a plain file replaces its .gz file
        if (found := IDX.fullmatch(path.name)) and path.is_file():
            split = "train" if found[2] == "train" else "test"
            files.setdefault(found[1], {})[f"{split} {found[3]}"] = path
    return files


def _read_idx_files(path: Path) -> Found:
    """Read the IDX files of a folder, or those of the data set to which one file belongs.

    Raises:
        DataError: A folder has several data sets, or there are images without labels.
    """
    files = _list_idx(path if path.is_dir() else path.parent)
    if found := IDX.fullmatch(path.name):
        files = {found[1]: files[found[1]]}
    own, *others = files.values()
    if others:
        raise DataError(
            f"{path} has the IDX files of {len(files)} data sets; name a file of one of them, such "
            f"as --file {next(iter(own.values()))}"
        )
    splits = {}
    for split in dict.fromkeys(name.split()[0] for name in own):
        pair = [own.get(f"{split} {kind}") for kind in ("images", "labels")]
        if None in pair:
            raise DataError(f"{path}: there are {split} images or labels, but not both")
        splits[split] = tuple(decode_idx(file, read_plain_file(file)) for file in pair if file)
    return Found(splits)
