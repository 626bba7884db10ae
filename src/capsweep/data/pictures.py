"""Pictures in folders: find them by torchvision's ImageFolder convention, and decode them.

A folder has a folder for each class. Alternatively it has the folders `train` and `test` and,
optionally, `val`, each with a folder for each class.

Every picture is converted by the same rule. It is turned as its EXIF data say. Pixels of 16 bits
are divided by 257. Transparent pixels become white. Palettes and other colours become RGB.
"""

import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from rich.progress import track

from capsweep.data.arrays import Labelled
from capsweep.errors import DataError
from capsweep.runtime import terminal
from capsweep.runtime.terminal import count_of
from capsweep.storage.files import open_plain_file

# The formats that are decoded. Pillow runs another program for EPS, so this format is not here.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
HIDDEN = (".", "__MACOSX")  # begin the names of files and folders that are ignored
MOST_PIXELS = 100_000_000  # a larger picture is not decoded, because it could fill the memory
# The split of a folder, by its name in small letters.
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
MOST_NAMED = 5  # how many pictures or sizes a line names
WIDE = 257  # an intensity of 16 bits divided by an intensity of 8 bits
USUAL_SIDE = 32  # side in pixels that is proposed for larger pictures

Size = tuple[int, int]  # height and width in pixels


def decode_picture(path: Path, size: Size | None = None) -> np.ndarray:
    """Decode a picture as RGB.

    Args:
        path: The file.
        size: The height and width to which the picture is stretched; None keeps its size.

    Returns:
        The picture, uint8 [3, H, W].

    Raises:
        DataError: The picture has more than MOST_PIXELS pixels, or pixels of 32 bits.
        OSError: The file cannot be read, or has no picture in one of FORMATS.
        Exception: The file is damaged; Pillow raises many types of errors.
    """
    with warnings.catch_warnings(), open_plain_file(path) as file:
        warnings.simplefilter("ignore")  # Pillow warns of faults that it repairs
        picture = Image.open(file, formats=FORMATS)
        if picture.width * picture.height > MOST_PIXELS:
            raise DataError(f"{picture.width}x{picture.height} pixels are too many")
        if size is not None:
            picture.draft("RGB", (2 * max(size), 2 * max(size)))  # decodes large JPEG files faster
        picture = _make_rgb(picture)
    if size is not None:
        picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(picture).transpose(2, 0, 1)


def _make_rgb(picture: Image.Image) -> Image.Image:
    """Convert a picture to upright RGB; raise DataError if its pixels have 32 bits."""
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith(("I", "F")):
        values = np.asarray(picture)
        if picture.mode == "F" or values.min() < 0 or values.max() >= 2**16:
            raise DataError("its pixels have 32 bits; save it with 8 or 16 bits")
        picture = Image.fromarray((values // WIDE).astype(np.uint8))
    if picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture.convert("RGBA"))
    return picture.convert("RGB")


def read_pictures(
    folders: Mapping[str, Path], size: Size | None, left_out: list[str]
) -> dict[str, Labelled]:
    """Read all pictures of some folders; the label of a picture is the name of its class.

    Images have one channel if every pixel of every picture is grey, else three (RGB).

    Args:
        folders: The folder of each split, which has a folder for each class.
        size: The height and width to which pictures are stretched; None: all pictures must have the
            same size.
        left_out: A line is added for each kind of files that are not read.

    Returns:
        Images [N, C, H, W] and names of classes [N], by split.

    Raises:
        DataError: There are no pictures, or they have several sizes.
        OSError: A folder cannot be read.
    """
    listed = [
        (split, *picture)
        for split, folder in folders.items()
        for picture in _list_pictures(folder, left_out)
    ]
    images_NCHW, kept, broken = np.empty((0, 3, 0, 0), np.uint8), [], []
    are_grey = True
    console = terminal.make_console(stderr=True)
    quiet = not console.is_interactive
    for split, path, label in track(
        listed, "reading pictures", console=console, transient=True, disable=quiet
    ):
        try:
            picture = decode_picture(path, size)
        except Exception as error:  # Pillow raises any error for a damaged file
            is_other = isinstance(error, UnidentifiedImageError)
            broken.append(f"{path} ({'it is no picture' if is_other else error})")
            continue
        if not kept:
            images_NCHW = np.empty((len(listed), *picture.shape), np.uint8)
        if picture.shape != images_NCHW.shape[1:]:
            raise _refuse_sizes([path for _, path, _ in listed])
        images_NCHW[len(kept)] = picture
        are_grey = are_grey and bool((picture == picture[:1]).all())
        kept.append((split, label))
    if broken:
        left_out.append(f"{count_of(len(broken), 'unreadable picture')}: {_join_first(broken)}")
    if not kept:
        names = ", ".join(map(str, folders.values()))
        raise DataError(f"{names}: there are no pictures to read; {'; '.join(left_out)}")
    images_NCHW = images_NCHW[: len(kept), : 1 if are_grey else 3]
    split_N, label_N = np.array(kept).T
    chosen = {split: split_N == split for split in dict.fromkeys(split_N.tolist())}
    return {split: (images_NCHW[is_in_N], label_N[is_in_N]) for split, is_in_N in chosen.items()}


def find_splits(folder: Path, left_out: list[str]) -> dict[str, Path]:
    """Return the folder of each split; a folder without splits is that of "train".

    Args:
        folder: The folder, as the module describes it.
        left_out: A line is added if there are folders beside those of splits.

    Raises:
        DataError: There are no folders of classes, or there is only one.
        OSError: The folder cannot be read.
    """
    inner = _list_folders(folder)
    named = {SPLITS[path.name.lower()]: path for path in inner if path.name.lower() in SPLITS}
    splits = {split: path for split, path in named.items() if _list_folders(path)}
    if "train" in splits:
        others = [str(path) for path in inner if path not in splits.values()]
        left_out += [f"folders without classes: {_join_first(others)}"] if others else []
        return splits
    if len(inner) == len(named):
        raise DataError(
            f"{folder}: there are no folders of classes; put the pictures of each class into a "
            "folder with the name of the class, or type --file with the path of a .csv or .npz file"
        )
    if len(inner) == 1:
        raise DataError(
            f"{folder} has one class only, {inner[0].name}; if its folders are the classes, type "
            f"--file {inner[0]}"
        )
    return {"train": folder}


def _list_folders(folder: Path) -> list[Path]:
    """List the folders in a folder, sorted by name; hidden ones and `__MACOSX` are left out."""
    inner = (path for path in folder.iterdir() if not path.name.startswith(HIDDEN))
    return sorted(path for path in inner if path.is_dir())


def _list_pictures(folder: Path, left_out: list[str]) -> list[tuple[Path, str]]:
    """List the pictures in a folder of classes with their classes, and add the rest to `left_out`.

    Links to files are followed, and links to folders are not. Hidden files are ignored.
    """
    listed: list[tuple[Path, str]] = []
    others: Counter[str] = Counter()
    for path in sorted(folder.rglob("*")):
        label, *inner = path.relative_to(folder).parts
        if path.is_dir() or any(part.startswith(HIDDEN) for part in (label, *inner)):
            continue
        if inner and path.suffix.lower() in ENDINGS:
            listed.append((path, label))
        else:
            others[path.suffix.lower() or path.name] += 1
    classes = {label for _, label in listed}
    empty = [str(path) for path in _list_folders(folder) if path.name not in classes]
    if empty:
        left_out.append(f"folders without pictures: {_join_first(empty)}")
    if others:
        kinds = _join_first([f"{count} {ending}" for ending, count in others.most_common()])
        left_out.append(f"files of {folder} that are no pictures of a class: {kinds}")
    return listed


def _join_first(texts: list[str]) -> str:
    more = f", and {len(texts) - MOST_NAMED:,} more" if len(texts) > MOST_NAMED else ""
    return ", ".join(texts[:MOST_NAMED]) + more


def _refuse_sizes(paths: list[Path]) -> DataError:
    """Count the sizes of pictures, and return the error that names the sizes and the cure."""
    sizes: Counter[tuple[int, ...]] = Counter()
    for path in paths:
        with suppress(Exception), open_plain_file(path) as file:  # broken pictures are left out
            sizes[Image.open(file, formats=FORMATS).size[::-1]] += 1
    side = min(*sizes.most_common(1)[0][0], USUAL_SIDE)
    named = [f"{height}x{width} ({n:,})" for (height, width), n in sizes.most_common()]
    return DataError(
        f"the pictures have {len(sizes):,} sizes (height x width): {_join_first(named)}; "
        f"type --size {side} to stretch all to {side}x{side} pixels, or --size HEIGHTxWIDTH"
    )
