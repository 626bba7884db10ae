"""Stored examples are compared with those made again: a hash alone proves only that nothing changed
since it was written down.
"""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import shard_folders

from capsweep.shards import manifest
from capsweep.shards.manifest import Manifest
from capsweep.shards.verify import compare_with_source, sample_places
from capsweep.storage.files import hash_file

NAME = "train-00001.h5"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three shards a split."""
    shard_folders.make(tmp_path)
    return tmp_path


def rehash(folder: Path, name: str = NAME) -> Manifest:
    """Write index.json anew for a file that was altered, as whoever altered it would."""
    found, path = manifest.read_manifest(folder), folder / name
    facts = {"bytes": path.stat().st_size, "sha256": hash_file(path)}
    shards = [replace(s, **facts) if s.name == name else s for s in found.shards]
    manifest.write_manifest(folder, replace(found, shards=tuple(shards)))
    return manifest.read_manifest(folder)


def compared(folder: Path, count: int) -> tuple[list[str], int]:
    """What is said of each fault, and how many were compared."""
    found = manifest.read_manifest(folder)
    job = shard_folders.job(with_sources="digits" in found.fields)
    faults, number = compare_with_source(folder, found, job, count, frozenset())
    return [str(fault) for fault in faults], number


def test_what_was_made_is_made_again_byte_for_byte(folder: Path) -> None:
    total = sum(manifest.read_manifest(folder).content.splits.values())
    assert compared(folder, total) == ([], total)


def test_the_digits_alone_are_compared_too(tmp_path: Path) -> None:
    shard_folders.make(tmp_path, shard_folders.job(with_sources=True), shards=2)
    assert compared(tmp_path, 10)[0] == []
    with h5py.File(tmp_path / NAME, "r+") as file:
        file["digits"][0, 1] = 0
    rehash(tmp_path)
    (said,) = compared(tmp_path, 10)[0]
    assert "digits of train 1437" in said


@pytest.mark.parametrize("count", [1, 50, 10**9])
def test_every_shard_is_sampled_its_first_and_last_example_among_them(
    folder: Path, count: int
) -> None:
    found = manifest.read_manifest(folder)
    for part in found.shards:
        places = sample_places(found, part, count)
        assert {0, part.examples - 1} <= set(places.tolist())
        assert len(places) == len(set(places.tolist())) <= part.examples
        assert places.tolist() == sorted(places)
        assert sample_places(found, part, count).tolist() == places.tolist()
        if count == 10**9:
            assert len(places) == part.examples
    assert sum(len(sample_places(found, part, 60)) for part in found.shards) in range(60, 72)


def test_the_sample_is_another_one_for_another_data_set(folder: Path) -> None:
    found = manifest.read_manifest(folder)
    other = replace(found, content=replace(found.content, version=2))
    first, second = (sample_places(of, found.shards[0], 300).tolist() for of in (found, other))
    assert first != second


def test_a_shard_of_one_example_is_sampled_once(folder: Path) -> None:
    found = manifest.read_manifest(folder)
    one = replace(found.shards[0], examples=1)
    assert sample_places(found, one, 10).tolist() == [0]


@pytest.mark.parametrize(
    ("name", "value"), [("images", 7), ("labels", 3), ("indices", 70_000), ("shifts", -100)]
)
def test_a_shard_that_was_altered_with_a_right_hash_is_found(
    folder: Path, name: str, value: int
) -> None:
    with h5py.File(folder / NAME, "r+") as file:
        file[name][-1] = value
    found = rehash(folder)
    last = found.shards[1].first + found.shards[1].examples - 1
    (said,) = compared(folder, 1)[0]
    assert said.startswith(f"{NAME}: different: 1 of 2 examples")
    assert said.endswith(f"{name} of train {last}")


def test_one_altered_example_anywhere_is_found_when_all_are_compared(folder: Path) -> None:
    with h5py.File(folder / NAME, "r+") as file:
        file["images"][100:110] = 255 - np.asarray(file["images"][100:110])
    first = rehash(folder).shards[1].first
    (said,) = compared(folder, 10**6)[0]
    assert "10 of 958 examples" in said
    assert said.endswith(", ".join(str(first + place) for place in range(100, 105)) + ", ...")


def test_shards_whose_names_were_exchanged_in_the_index_are_found(folder: Path) -> None:
    found = manifest.read_manifest(folder)
    one, other, *rest = found.shards
    facts = [{"bytes": s.bytes, "sha256": s.sha256} for s in (one, other)]
    names = [replace(one, name=other.name, **facts[1]), replace(other, name=one.name, **facts[0])]
    manifest.write_manifest(folder, replace(found, shards=(*names, *rest)))
    assert len(compared(folder, 1)[0]) == 2
