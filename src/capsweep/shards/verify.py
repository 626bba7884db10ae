"""Whether a folder holds what its manifest says: each file is read now."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from capsweep.errors import DataError
from capsweep.shards.layout import DAMAGE_ERRORS, Job, Maker, find_disagreements, open_shard
from capsweep.shards.manifest import INDEX, STATE, Manifest, Shard
from capsweep.storage.files import hash_bytes, hash_file, stat_regular_file

NAMED = 5  # examples of a shard that are named

AGAIN = "run the same `make shards` again, which makes it anew, or copy it again"
CURES: Mapping[str, str] = {
    "missing": AGAIN,
    "truncated": AGAIN,
    "altered": AGAIN,
    "unreadable": f"correct its permissions, or move it away; then {AGAIN}",
    "different": "its hash is that of index.json: delete it, and run the same `make shards` again",
    "surplus": "move it away, or delete it",
}


@dataclass(frozen=True)
class Fault:
    """What is wrong with one file; kind: of CURES. text: in words, without its name."""

    file: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.kind}: {self.text}"

    def as_error(self, folder: Path) -> DataError:
        """The error of a file that was to be read, with the cure."""
        return DataError(f"{folder / self.file}: {self.kind}: {self.text}; {CURES[self.kind]}")


def describe_cures(faults: Sequence[Fault]) -> Iterator[str]:
    """What to do, by kind."""
    for cure in dict.fromkeys(CURES[fault.kind] for fault in faults):
        kinds = dict.fromkeys(f.kind for f in faults if CURES[f.kind] == cure)
        yield f"{', '.join(kinds)}: {cure}"


def verify_files(folder: Path, manifest: Manifest, advance: Callable[[], object]) -> list[Fault]:
    """All faults of the shards of a manifest, then all that is in their folder besides.

    advance: is called for each shard. Raises DataError for a folder that cannot be listed.
    """
    # hashlib lets go of the interpreter, so that threads are enough.
    pool = ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0)))
    faults: list[Fault] = []
    try:
        for of_shard in pool.map(partial(list_faults, folder, manifest), manifest.shards):
            faults += of_shard
            advance()
    finally:
        pool.shutdown(cancel_futures=True)
    return [*faults, *_find_surplus(folder, {shard.name for shard in manifest.shards})]


def list_faults(folder: Path, manifest: Manifest, shard: Shard) -> list[Fault]:
    """What is wrong with a shard, which is read now."""
    try:
        if (fault := find_size_fault(folder, shard)) is not None:
            return [fault]
        if (sha256 := hash_file(folder / shard.name)) != shard.sha256:
            text = f"sha256 {sha256}, {shard.sha256} in index.json"
            return [Fault(shard.name, "altered", text)]
        with open_shard(folder / shard.name) as file:
            texts = find_disagreements(file, manifest, shard)
            return [Fault(shard.name, "different", text) for text in texts]
    except DAMAGE_ERRORS as error:
        return [damage_fault(shard, error)]


def find_size_fault(folder: Path, shard: Shard) -> Fault | None:
    """Why a shard is no plain file of as many bytes as it should have; None where it is one."""
    try:
        size = stat_regular_file(folder, shard.name).st_size
    except FileNotFoundError:
        return Fault(shard.name, "missing", "no such file")
    except DataError as error:
        return Fault(shard.name, "unreadable", str(error).removeprefix(f"{folder / shard.name}: "))
    if size == shard.bytes:
        return None
    kind = "truncated" if size < shard.bytes else "altered"
    return Fault(shard.name, kind, f"{size:,} bytes, {shard.bytes:,} in index.json")


def damage_fault(shard: Shard, error: BaseException) -> Fault:
    """What the system or HDF5 says, on one line."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Fault(shard.name, "unreadable", f"cannot be read ({' '.join(reason.split())})")


def _find_surplus(folder: Path, names: set[str]) -> Iterator[Fault]:
    try:
        present = sorted(entry.name for entry in os.scandir(folder))
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror})") from error
    for name in present:
        if name not in names and name not in (INDEX, STATE):
            kind = "folder" if (folder / name).is_dir() else "file"
            yield Fault(name, "surplus", f"a {kind} that index.json does not name")


def compare_with_source(
    folder: Path, manifest: Manifest, job: Job, count: int, damaged: set[str]
) -> tuple[list[Fault], int]:
    """Make about `count` examples anew and compare them byte for byte with the stored ones.

    A hash proves that a file is what its manifest says; this, that the manifest tells the truth.
    damaged: shards that are left out. Returns the faults, and how many examples were compared: at
    least the first and the last one of each shard.
    """
    faults: list[Fault] = []
    compared = 0
    for split in manifest.content.splits:
        make = job.build_maker(split)
        for shard in manifest.shards_of(split):
            if shard.name not in damaged:
                places = sample_places(manifest, shard, count)
                faults += _compare_shard(folder, shard, places, make)
                compared += len(places)
    return faults, compared


def _compare_shard(
    folder: Path, shard: Shard, places: Sequence[int], make: Maker
) -> Iterator[Fault]:
    differing: dict[int, None] = {}
    names: dict[str, None] = {}
    try:
        with open_shard(folder / shard.name) as file:
            data_sets: dict[str, Any] = dict(file)
            for place in places:
                made = _freeze(make(shard.first + place, shard.first + place + 1))
                stored = _freeze({name: data_sets[name][place : place + 1] for name in data_sets})
                for name in {**made, **stored}:
                    if made.get(name) != stored.get(name):
                        differing[shard.first + place] = names[name] = None
    except DAMAGE_ERRORS as error:
        yield damage_fault(shard, error)
    if not differing:
        return
    some = ", ".join(map(str, list(differing)[:NAMED])) + ", ..." * (len(differing) > NAMED)
    text = (
        f"{len(differing)} of {len(places)} examples that were compared are not those of the "
        f"source: {', '.join(names)} of {shard.split} {some}"
    )
    yield Fault(shard.name, "different", text)


def sample_places(manifest: Manifest, shard: Shard, count: int) -> list[int]:
    """Which examples of a shard are compared, in order: its share of `count`, drawn by its
    fingerprint, with its first and its last example.
    """
    share = -(-count * shard.examples // sum(manifest.content.splits.values()))
    key = hash_bytes(f"{manifest.content.fingerprint} {shard.name}".encode())
    order = np.random.default_rng(int(key, 16)).permutation(shard.examples)
    return sorted({0, shard.examples - 1, *order[:share].tolist()})


def _freeze(arrays: Mapping[str, np.ndarray]) -> dict[str, object]:
    """Values that are equal where arrays are, byte for byte: NaN is itself, -0 is not 0."""
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()}
