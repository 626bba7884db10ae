"""Whether a folder holds what its manifest says: each file is read now."""

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import h5py
import numpy as np
import torch

from capsweep.data import randomness
from capsweep.data.randomness import seed_of
from capsweep.errors import DataError
from capsweep.shards.job import Job, Maker
from capsweep.shards.layout import DAMAGE_ERRORS, open_shard
from capsweep.shards.making_plan import STATE, TEMPORARY
from capsweep.shards.manifest import INDEX, Manifest, Shard
from capsweep.storage.files import stat_regular_file

AT_ONCE = 1 << 20  # bytes
NAMED = 5  # examples of a shard that are named

FaultKind = Literal[
    "missing", "truncated", "grown", "altered", "unlike", "unreadable", "surplus", "leftover",
    "different",
]  # fmt: skip
AGAIN = "run the same `make shards` again, which makes it anew, or copy it again"
KNOWN_AS_WHOLE = (
    "delete it, and run the same `make shards` again, which would else take it for whole: its hash "
    "is that of index.json"
)
CURES: Mapping[FaultKind, str] = {
    "missing": AGAIN,
    "truncated": AGAIN,
    "grown": AGAIN,
    "altered": AGAIN,
    "unreadable": "correct its permissions, or move it away; then " + AGAIN,
    "unlike": KNOWN_AS_WHOLE,
    "different": KNOWN_AS_WHOLE,
    "surplus": "move it away, or delete it",
    "leftover": "the next `make shards` removes it; no other command needs it",
}


@dataclass(frozen=True)
class Fault:
    """What is wrong with one file; text: in words, without its name."""

    file: str
    kind: FaultKind
    text: str

    def __str__(self) -> str:
        name = self.file if self.file.isprintable() else ascii(self.file)
        return f"{name}: {self.kind}: {self.text}"


def describe_cures(faults: Sequence[Fault]) -> Iterator[str]:
    """What to do, by kind."""
    for cure in dict.fromkeys(CURES[fault.kind] for fault in faults):
        kinds = dict.fromkeys(f.kind for f in faults if CURES[f.kind] == cure)
        yield f"{', '.join(kinds)}: {cure}"


# What an opened shard is besides its bytes: where it is not as it should be, in words.
Describe: TypeAlias = Callable[[h5py.File, Shard], Iterable[str]]


def verify_files(
    folder: Path, shards: Sequence[Shard], describe: Describe, advance: Callable[[int], object]
) -> list[Fault]:
    """All faults of the shards that a folder is to hold, then all that is there besides.

    advance: is told of bytes as they are read, by several threads in turns. Raises DataError for a
    folder that cannot be listed.
    """
    names = {(shard.bytes, shard.sha256): shard.name for shard in shards}
    is_ended, lock = threading.Event(), threading.Lock()

    def count(size: int) -> bool:
        with lock:
            advance(size)
        return not is_ended.is_set()

    # hashlib lets go of the interpreter, so that threads are enough.
    pool = ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0)))
    try:
        checked = pool.map(partial(_check_shard, folder, names, describe, count), shards)
        faults = [fault for of_shard in checked for fault in of_shard]
    finally:
        is_ended.set()
        pool.shutdown(cancel_futures=True)
    return [*faults, *_find_surplus(folder, {shard.name for shard in shards})]


def _check_shard(
    folder: Path,
    names: Mapping[tuple[int, str], str],
    describe: Describe,
    count: Callable[[int], bool],
    shard: Shard,
) -> list[Fault]:
    """names: of all shards, by bytes and sha256, to know a file again under another one's name."""
    path = folder / shard.name
    try:
        size = stat_regular_file(folder, shard.name).st_size
        if size != shard.bytes and all(size != other for other, _ in names):
            return [_fault_of_size(shard, size)]
        sha256 = _hash_file(path, count)
        if (size, sha256) != (shard.bytes, shard.sha256):
            return [_fault_of_content(shard, size, sha256, names.get((size, sha256)))]
        with open_shard(path) as file:
            return [Fault(shard.name, "unlike", text) for text in describe(file, shard)]
    except FileNotFoundError:
        return [Fault(shard.name, "missing", "no such file")]
    except DataError as error:
        return [Fault(shard.name, "unreadable", str(error).removeprefix(f"{path}: "))]
    except DAMAGE_ERRORS as error:
        return [Fault(shard.name, "unreadable", f"cannot be read ({describe_damage(error)})")]


def _hash_file(path: Path, count: Callable[[int], bool]) -> str:
    digest, room = hashlib.sha256(), memoryview(bytearray(AT_ONCE))
    with path.open("rb", buffering=0) as file:
        while (size := file.readinto(room)) and count(size):
            digest.update(room[:size])
    return digest.hexdigest()


def _fault_of_size(shard: Shard, size: int) -> Fault:
    kind = "truncated" if size < shard.bytes else "grown"
    return Fault(shard.name, kind, f"{size:,} bytes, {shard.bytes:,} recorded")


def _fault_of_content(shard: Shard, size: int, sha256: str, other: str | None) -> Fault:
    if other is not None:
        return Fault(shard.name, "altered", f"it is {other}, under another name")
    if size != shard.bytes:
        return _fault_of_size(shard, size)
    return Fault(shard.name, "altered", f"sha256 {sha256}, recorded {shard.sha256}")


def _find_surplus(folder: Path, names: set[str]) -> Iterator[Fault]:
    try:
        present = sorted(entry.name for entry in os.scandir(folder))
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror})") from error
    for name in present:
        if TEMPORARY.fullmatch(name):
            yield Fault(name, "leftover", "of a write that did not end, or has not yet")
        elif name not in names and name not in (INDEX, STATE):
            kind = "folder" if (folder / name).is_dir() else "file"
            yield Fault(name, "surplus", f"a {kind} that index.json does not name")


def describe_damage(error: BaseException) -> str:
    """What the system or HDF5 says, on one line."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(reason.split())


def compare_with_source(
    folder: Path, manifest: Manifest, job: Job, count: int, without: frozenset[str]
) -> tuple[list[Fault], int]:
    """Make about `count` examples anew and compare them byte for byte with the stored ones.

    A hash proves that a file is what its manifest says; this, that the manifest tells the truth.
    without: shards that are known to be damaged. Returns the faults, and how many were compared: at
    least the first and the last example of each shard.
    """
    faults: list[Fault] = []
    compared = 0
    makers: dict[str, Maker] = {}
    for shard in (one for one in manifest.shards if one.name not in without):
        maker = makers.setdefault(shard.split, job.maker(shard.split))
        places = sample_places(manifest, shard, count)
        faults += _compare_shard(folder / shard.name, shard, places, maker)
        compared += len(places)
    return faults, compared


def sample_places(manifest: Manifest, shard: Shard, count: int) -> np.ndarray:
    """Which examples of a shard are compared, in order: its share of `count`, drawn by its
    fingerprint, with its first and its last example.
    """
    total = sum(manifest.content.splits.values())
    share = min(shard.examples, max(2, -(-count * shard.examples // total)))
    key = seed_of(0, manifest.content.fingerprint, shard.split)
    drawn = randomness.draw_words(
        key, torch.arange(shard.first, shard.first + shard.examples)
    ).numpy()
    drawn[[0, -1]] = np.iinfo(np.int64).min
    return np.sort(np.argsort(drawn, kind="stable")[:share])


def _compare_shard(path: Path, shard: Shard, places: np.ndarray, make: Maker) -> list[Fault]:
    differing: dict[int, None] = {}
    names: dict[str, None] = {}
    try:
        with open_shard(path) as file:
            for place in map(int, places):
                made = make(shard.first + place, shard.first + place + 1)
                stored = {
                    str(name): np.asarray(one[place : place + 1]) for name, one in file.items()
                }
                for name in {**made, **stored}:
                    if not _is_same(made.get(name), stored.get(name)):
                        differing[shard.first + place] = names[name] = None
    except DAMAGE_ERRORS as error:
        return [Fault(shard.name, "unreadable", f"cannot be read ({describe_damage(error)})")]
    if not differing:
        return []
    some = ", ".join(map(str, list(differing)[:NAMED])) + ", ..." * (len(differing) > NAMED)
    text = (
        f"{len(differing)} of {len(places)} examples that were compared are not those of the "
        f"source: {', '.join(names)} of {shard.split} {some}"
    )
    return [Fault(shard.name, "different", text)]


def _is_same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Byte for byte: NaN is itself, -0 is not 0."""
    if one is None or other is None:
        return False
    is_alike = one.dtype == other.dtype and one.shape == other.shape
    return is_alike and one.tobytes() == other.tobytes()
