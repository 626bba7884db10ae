"""Whether a folder holds what its manifest says: each file is read now."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from capsweep.errors import DataError
from capsweep.shards.layout import DAMAGE_ERRORS, Maker, ShardJob, open_shard
from capsweep.shards.manifest import INDEX, STATE, Manifest, Shard
from capsweep.shards.shard_verifier import CURES, Fault, damage_fault, list_faults
from capsweep.storage.files import hash_bytes

NAMED = 5  # examples of a shard that are named


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
    faults: list[Fault] = []
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        for of_shard in pool.map(partial(list_faults, folder, manifest), manifest.shards):
            faults += of_shard
            advance()
    return [*faults, *_find_surplus(folder, {shard.name for shard in manifest.shards})]


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
    folder: Path, manifest: Manifest, job: ShardJob, count: int, damaged: set[str]
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
