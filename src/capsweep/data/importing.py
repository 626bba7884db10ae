"""Import images and labels, in the forms in which people have them, into one .npz file.

The forms are a folder of pictures (`pictures.py`), a CSV file with a line for each image, the four
files of MNIST's format IDX, and an .npz file. `NpzReader` reads the file that is written.
"""

import csv
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.nn import functional as F

from capsweep.config.validation import check_resolved
from capsweep.data.arrays import NAMES, Labelled, check_classes, check_splits, read_arrays
from capsweep.data.digits import decode_idx
from capsweep.data.images import Decoded, LabelledImages, hold_out
from capsweep.data.official import write_examples
from capsweep.data.pictures import Size, find_splits, read_pictures
from capsweep.errors import DataError, UserError
from capsweep.storage.files import hash_file, lock_file, open_plain_file, read_plain_file

IDX = re.compile(r"(.*?)(train|t10k|test)[-.](images|labels)[-.]idx[13][-.]ubyte(\.gz)?")
LABEL = ("label", "labels", "class", "target")  # names of the column of labels, in small letters
TAKEN = (
    "--file takes a folder with a folder of pictures for each class (also below train/ and test/), "
    "a .csv file with a column `label`, IDX files such as train-images-idx3-ubyte.gz or their "
    "folder, or an .npz file with train_images and train_labels"
)
Part = float | Path  # a share of the training images, or a path to other data


@dataclass(frozen=True)
class Imported:
    """A data set that was imported.

    Attributes:
        sha256: The sha256 of the written file.
        splits: The examples by split.
        class_names: The name of each class, in the order of the labels.
        left_out: What was not imported, a line each.
    """

    sha256: str
    splits: Decoded
    class_names: list[str]
    left_out: list[str]


def import_data(
    source: Path, target: Path, parts: Mapping[str, Part], size: Size | None = None
) -> Imported:
    """Read and check images and labels, and write them to an .npz file.

    Args:
        source: The file or folder to read.
        target: The .npz file to write, atomically.
        parts: The images of "test" and "validation" that the source does not have.
        size: Height and width to which images are stretched; None: as they are.

    Raises:
        UserError: The data cannot be imported; the message says why, and what to type.
        OSError: A file cannot be read or written.
    """
    left_out: list[str] = []
    try:
        read = _read_splits(source, parts, size, left_out)
        numbered, class_names = _number_classes(read)
    except Exception as error:  # numpy, gzip and zipfile raise any error for a damaged file
        if isinstance(error, UserError) or (isinstance(error, OSError) and error.filename):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{source}: it cannot be imported: {reason}") from error
    splits = dict(check_splits(source, numbered, len(class_names)))
    for split, share in parts.items():
        if isinstance(share, float):
            count = max(1, round(share * len(splits["train"])))
            splits["train"], splits[split] = hold_out(splits["train"], count)
    check_classes(splits, len(class_names))
    if size is not None:
        splits = {split: _stretch(examples, size) for split, examples in splits.items()}
    with lock_file(target):
        write_examples(target, {NAMES[split]: each for split, each in splits.items()})
    return Imported(hash_file(target), splits, class_names, left_out)


def _stretch(examples: LabelledImages, size: Size) -> LabelledImages:
    images_NCHW = F.interpolate(examples.images_NCHW, size, mode="bilinear", antialias=True)
    return LabelledImages(images_NCHW, examples.labels_N)


def _read_splits(
    source: Path, parts: Mapping[str, Part], size: Size | None, left_out: list[str]
) -> dict[str, Labelled]:
    """Read the images and labels of all splits, except those that are drawn later.

    Raises:
        DataError: A split is missing or is there twice, or its content is not valid.
        Exception: A file is damaged; numpy, gzip and zipfile raise many types of errors.
    """
    are_pictures = source.is_dir() and not _list_idx(source)
    find = find_splits if are_pictures else _read_file
    found: dict[str, Any] = find(source, left_out)  # folders of pictures, or images and labels
    if twice := [split for split in parts if split in found]:
        raise DataError(
            f"{source} has {twice[0]} images already; leave out --{twice[0]}, or type --file "
            "with the path of the training images"
        )
    if "test" not in {*found, *parts}:
        raise DataError(
            f"{source} has no test images with labels; type --test 0.2 to draw a fifth of "
            "each class, or --test PATH"
        )
    for split, path in parts.items():
        if isinstance(path, Path):
            other = find(path, left_out)
            if [*other] != ["train"]:
                raise DataError(f"{path} has {', '.join(other)}; name images without splits")
            found[split] = other["train"]
    return read_pictures(found, size, left_out) if are_pictures else found


def _read_file(path: Path, left_out: list[str]) -> dict[str, Labelled]:
    """Read the images and labels of a file, or of IDX files, by split."""
    if _list_idx(path) if path.is_dir() else IDX.fullmatch(path.name):
        return _read_idx_files(path)
    if path.suffix == ".csv":
        return {"train": _read_csv(path)}
    if path.suffix == ".npz":
        with open_plain_file(path) as file:
            splits, unused = read_arrays(path, file)
        left_out += [f"arrays of {path}: {', '.join(unused)}"] if unused else []
        return splits
    path.stat()  # raises OSError if there is no file
    is_packed = path.suffix in (".zip", ".gz", ".tar", ".tgz", ".rar", ".7z")
    raise DataError(f"{path}: {'unpack it, and name its folder' if is_packed else TAKEN}")


def _number_classes(splits: dict[str, Labelled]) -> tuple[dict[str, Labelled], list[str]]:
    """Replace labels by numbers from 0, in the order of the training labels.

    Returns:
        The splits with numbered labels, and the names of the classes.

    Raises:
        ValueError: A class has no training image.
        ConfigError: The name of a class has a `${`, as if it were a key.
    """
    _, trained = splits.get("train", (None, []))
    numbered, names = {}, np.unique(trained)
    for split, (images, labels) in splits.items():
        if len(unseen := np.setdiff1d(labels, names)):
            raise ValueError(f"no training image has the class {unseen[0]}, but {split} has it")
        numbered[split] = images, np.searchsorted(names, labels)
    class_names = [str(name).removesuffix(".0") for name in names]
    check_resolved("the name of a class", class_names)
    return numbered, class_names


def _read_csv(path: Path) -> Labelled:
    """Read a CSV file that has an image in each line: its label, and the values of its pixels.

    The column of the labels is found by its name. If the file has no line of names, the first
    column has the labels.
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
        side = math.isqrt(len(pixels))
        if side**2 != len(pixels):
            raise DataError(
                f"{path}: {len(pixels):,} columns of pixels are no square image; put the images as "
                "pictures into a folder for each class"
            )
        options = {"delimiter": ",", "quotechar": '"', "comments": None, "skiprows": int(has_names)}
        file.seek(0)
        images = np.loadtxt(file, np.uint8, usecols=pixels, ndmin=2, **options)
        file.seek(0)
        labels = np.loadtxt(file, str, usecols=columns, ndmin=1, **options)
    are_numbers = all(label.isdecimal() for label in labels)
    return images.reshape(-1, 1, side, side), labels.astype(int) if are_numbers else labels


def _list_idx(folder: Path) -> dict[str, dict[str, dict[str, Path]]]:
    """Return the IDX files of a folder by name of the data set, split, and kind of content."""
    files: dict[str, dict[str, dict[str, Path]]] = {}
    for path in sorted(folder.iterdir(), reverse=True):  # a plain file replaces its .gz file
        if (found := IDX.fullmatch(path.name)) and path.is_file():
            split = "train" if found[2] == "train" else "test"
            files.setdefault(found[1], {}).setdefault(split, {})[found[3]] = path
    return files


def _read_idx_files(path: Path) -> dict[str, Labelled]:
    """Read the IDX files of a folder, or those of the data set to which one file belongs.

    Raises:
        DataError: A folder has several data sets, or there are images without labels.
    """
    files = _list_idx(path if path.is_dir() else path.parent)
    if found := IDX.fullmatch(path.name):
        files = {found[1]: files[found[1]]}
    own, *others = files.values()
    if others:
        first, *_ = own.values()
        raise DataError(
            f"{path} has the IDX files of {len(files)} data sets; name a file of one of them, such "
            f"as --file {next(iter(first.values()))}"
        )
    splits = {}
    for split, pair in own.items():
        if len(pair) != 2:
            raise DataError(f"{path}: there are {split} images or labels, but not both")
        decoded = {kind: decode_idx(file, read_plain_file(file)) for kind, file in pair.items()}
        splits[split] = decoded["images"][:, None], decoded["labels"]
    return splits
