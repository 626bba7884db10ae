"""Stored examples against those that are made again of the source images, byte for byte.

A hash proves that a file is what its manifest says; this, that the manifest tells the truth.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from capsweep.data import counter
from capsweep.data.order import seed_of
from capsweep.data.shards.described import DAMAGED, opened
from capsweep.data.shards.manifest import Manifest, Shard
from capsweep.data_prep.checking.verify import Fault, in_one_line
from capsweep.data_prep.job import Job, Maker
from capsweep.data_prep.making.shard import AT_ONCE
from capsweep.errors import DataError, UserError

NAMED = 5  # examples of a shard that are named


def sample(manifest: Manifest, shard: Shard, count: int) -> np.ndarray:
    """Which examples of a shard are compared: places in it, in order.

    count: of the whole data set; a shard has its share of them, its first and its last example
    first of all. The choice is a function of the fingerprint and of what the shard holds.
    """
    total = sum(manifest.content.splits.values())
    share = min(shard.examples, max(2, -(-count * shard.examples // total)))
    key = seed_of(0, manifest.content.fingerprint, shard.split)
    drawn = counter.words(key, torch.arange(shard.first, shard.first + shard.examples)).numpy()
    drawn[[0, -1]] = np.iinfo(np.int64).min
    return np.sort(np.argsort(drawn, kind="stable")[:share])


def compare(
    folder: Path,
    manifest: Manifest,
    job: Job,
    count: int,
    without: frozenset[str] = frozenset(),
    advance: Callable[[int], object] = lambda count: None,
) -> tuple[list[Fault], int]:
    """Faults of the shards whose examples are others, and how many examples were compared.

    count: of them; at least two of every shard are. without: shards that are known to be damaged.
    advance: is told of examples as they are compared.
    """
    faults: list[Fault] = []
    compared = 0
    makers: dict[str, Maker] = {}
    for shard in manifest.shards:
        if shard.name in without:
            continue
        if shard.split not in makers:
            makers[shard.split] = job.maker(shard.split)
        places = sample(manifest, shard, count)
        faults += _of_shard(folder / shard.name, shard, places, makers[shard.split])
        compared += len(places)
        advance(len(places))
    return faults, compared


def _of_shard(path: Path, shard: Shard, places: np.ndarray, make: Maker) -> list[Fault]:
    differing: dict[int, list[str]] = {}
    try:
        for start, stop, stored in _stored(path, places):
            made = make(shard.first + start, shard.first + stop)
            for row, fields in _differing(stored, made, stop - start):
                differing[shard.first + start + row] = fields
    except DataError as error:
        return [Fault(shard.name, "unreadable", str(error))]
    if not differing:
        return []
    fields = ", ".join(dict.fromkeys(name for names in differing.values() for name in names))
    some = ", ".join(map(str, list(differing)[:NAMED])) + ", ..." * (len(differing) > NAMED)
    text = (
        f"{len(differing)} of {len(places)} examples that were compared are not those of the "
        f"source: {fields} of {shard.split} {some}"
    )
    return [Fault(shard.name, "different", text)]


def _stored(path: Path, places: np.ndarray) -> Iterator[tuple[int, int, Mapping[str, np.ndarray]]]:
    """All fields of these examples of a shard, in stretches. Raises DataError."""
    try:
        with opened(path) as file:
            sets = {str(name): found for name, found in file.items()}
            for start, stop in _stretches(places):
                arrays = {name: np.asarray(found[start:stop]) for name, found in sets.items()}
                yield start, stop, arrays
    except DAMAGED as error:
        raise DataError(f"cannot be read ({in_one_line(error)})") from error


def _stretches(places: np.ndarray) -> Iterator[tuple[int, int]]:
    """Places that follow one another, together, but not more than are made at once."""
    begins = np.flatnonzero(np.diff(places, prepend=-2) != 1)
    for begin, end in zip(begins, [*begins[1:], len(places)], strict=True):
        start, stop = int(places[begin]), int(places[end - 1]) + 1
        for first in range(start, stop, AT_ONCE):
            yield first, min(first + AT_ONCE, stop)


def _differing(
    stored: Mapping[str, np.ndarray], made: Mapping[str, np.ndarray], count: int
) -> Iterator[tuple[int, list[str]]]:
    """Which of so many examples are not what was made again, and in which fields."""
    names = {**stored, **made}
    unequal = [name for name in names if not _equal(stored.get(name), made.get(name))]
    for row in range(count) if unequal else ():
        one, other = ({n: a[row] for n, a in arrays.items()} for arrays in (stored, made))
        if fields := [name for name in unequal if not _equal(one.get(name), other.get(name))]:
            yield row, fields


def _equal(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Byte for byte: NaN is itself, -0 is not 0."""
    if one is None or other is None:
        return False
    is_alike = one.dtype == other.dtype and one.shape == other.shape
    return is_alike and one.tobytes() == other.tobytes()


def count_of(text: str, total: int) -> int:
    """How many examples of so many `4000` or `2.5%` asks for. Raises UserError naming --sample."""
    try:
        number, is_share = float(text.removesuffix("%")), text.endswith("%")
    except ValueError as error:
        raise UserError(f"--sample must be a number, or a share such as 5%, got {text}") from error
    if is_share and 0 < number <= 100:
        return math.ceil(number * total / 100)
    if not is_share and number >= 1 and number.is_integer():
        return min(int(number), total)
    raise UserError(f"--sample must be 1 or more examples, or up to 100%, got {text}")
