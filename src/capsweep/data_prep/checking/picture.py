"""The first examples of a data set of shards, as a PNG: what is stored, or composed now.

Shape letters: K examples, L = 2 digits of an image, C H W image; R rows of pictures.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from capsweep.data.shards.described import DAMAGED, opened
from capsweep.data.shards.manifest import Manifest
from capsweep.data.shards.regular import regular
from capsweep.data_prep import jobs
from capsweep.data_prep.checking import again
from capsweep.data_prep.checking.verify import in_one_line
from capsweep.errors import DataError, UserError
from capsweep.evaluation import picture_grid
from capsweep.evaluation.picture_grid import Grid

EXAMPLES = 10  # of each split
DIGITS = ("below", "on top")  # the two of an image
CHANNELS = ("left", "right")  # of a stereo pair

Arrays = Mapping[str, np.ndarray]


def draw(folder: Path, manifest: Manifest, data: str | None, overrides: Sequence[str]) -> bytes:
    """The PNG. data, overrides: where the source is, as `again.job` takes them.

    Raises DataError where a shard cannot be read, or the source of a virtual data set is absent.
    """
    by_split, note = _examples(folder, manifest, data, overrides)
    tiles_RKHW3, beside, below = [], [], []
    for split, arrays in by_split.items():
        for name, images_KCHW, texts in _rows(arrays):
            tiles_RKHW3.append(_tiles(images_KCHW))
            beside.append(f"{split} {name}".strip())
            below.append([*texts, *[""] * (EXAMPLES - len(texts))])
    content = manifest.content
    file = io.BytesIO()
    grid = Grid(
        np.stack(tiles_RKHW3),
        beside,
        [f"example {k}" if k == 0 else str(k) for k in range(EXAMPLES)],
        f"{content.dataset} of {content.origin.name}",
        f"The first examples of each split, below each its class. Fingerprint "
        f"{content.fingerprint}.{note}",
        below=below,
    )
    picture_grid.draw(grid, file)
    return file.getvalue()


def _examples(
    folder: Path, manifest: Manifest, data: str | None, overrides: Sequence[str]
) -> tuple[Mapping[str, Arrays], str]:
    """The first of each split, by field; and what is to be said of them."""
    if manifest.store == "virtual":
        return _made(manifest, data, overrides), " Composed now: none is stored."
    stored = {split: _stored(folder, manifest, split) for split in manifest.content.splits}
    is_composed = jobs.kind(manifest.content.dataset).with_sources is not None
    if again.DIGITS in manifest.fields or not is_composed:
        return stored, ""
    try:
        made = _made(replace(manifest, store="virtual"), data, overrides)
    except UserError as error:
        return stored, f" The two digits alone are not stored, nor is their source here: {error}."
    digits = {
        split: {**arrays, again.DIGITS: made[split][again.DIGITS][: len(arrays["images"])]}
        for split, arrays in stored.items()
    }
    return digits, " The two digits alone are not stored; they are composed now."


def _made(manifest: Manifest, data: str | None, overrides: Sequence[str]) -> dict[str, Arrays]:
    job = again.job(manifest, data, [*again.without_network(manifest.content), *overrides])
    splits = manifest.content.splits.items()
    return {split: job.maker(split)(0, min(EXAMPLES, count)) for split, count in splits}


def _stored(folder: Path, manifest: Manifest, split: str) -> Arrays:
    """Those of the first shard; its hash is not asked."""
    shard = manifest.of(split)[0]
    path = folder / shard.name
    try:
        regular(folder, shard.name)
        with opened(path) as file:
            return {name: _first(file[name]) for name in manifest.fields}
    except DataError:
        raise
    except DAMAGED as error:
        raise DataError(
            f"{path}: cannot be read ({in_one_line(error)}); see `capsweep data verify {folder}`"
        ) from error


def _first(stored: object) -> np.ndarray:
    if not isinstance(stored, h5py.Dataset):
        raise TypeError("a field is no data set")
    return np.asarray(stored[:EXAMPLES])


def _rows(arrays: Arrays) -> list[tuple[str, np.ndarray, list[str]]]:
    """Name, images [K, C, H, W] and classes of each row of pictures of a split."""
    images_KCHW, labels_K = arrays["images"], arrays["labels"]
    labels_KL = labels_K.reshape(len(labels_K), -1)
    texts = [", ".join(map(str, labels_L)) for labels_L in labels_KL]
    rows = [("", images_KCHW, texts)]
    if images_KCHW.shape[1] == len(CHANNELS):
        rows = [(name, images_KCHW[:, [c]], texts) for c, name in enumerate(CHANNELS)]
    if again.DIGITS in arrays:
        for place, name in enumerate(DIGITS):
            alone_KCHW = arrays[again.DIGITS][:, place]
            rows.append((name, alone_KCHW, [str(label) for label in labels_KL[:, place]]))
    return rows


def _tiles(images_KCHW: np.ndarray) -> np.ndarray:
    """[EXAMPLES, H, W, 3]; white where a split has fewer."""
    shown = picture_grid.rgb(images_KCHW / 255)
    white = np.full((EXAMPLES - len(shown), *shown.shape[1:]), np.nan)
    return np.concatenate([shown, white])
