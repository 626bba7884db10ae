"""Stored examples are compared with those made again: a hash alone proves only that nothing changed
since it was written down.
"""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import shard_folders

from capsweep.data.shards import manifest
from capsweep.data.shards.manifest import Manifest, Origin
from capsweep.data_prep.checking import again, deep
from capsweep.errors import ConfigError, DataError, UserError
from capsweep.files import sha256_of_file

NAME = "train-00001.h5"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three shards a split."""
    shard_folders.make(tmp_path)
    return tmp_path


def rehash(folder: Path, name: str = NAME) -> Manifest:
    """Write index.json anew for a file that was altered, as whoever altered it would."""
    found, path = manifest.read(folder), folder / name
    facts = {"bytes": path.stat().st_size, "sha256": sha256_of_file(path)}
    shards = [replace(s, **facts) if s.name == name else s for s in found.shards]
    manifest.write(folder, replace(found, shards=tuple(shards)))
    return manifest.read(folder)


def compared(folder: Path, count: int) -> tuple[list[str], int]:
    """What is said of each fault, and how many were compared."""
    found = manifest.read(folder)
    faults, number = deep.compare(folder, found, again.job(found), count)
    return [str(fault) for fault in faults], number


def test_what_was_made_is_made_again_byte_for_byte(folder: Path) -> None:
    total = sum(manifest.read(folder).content.splits.values())
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
    found = manifest.read(folder)
    for part in found.shards:
        places = deep.sample(found, part, count)
        assert {0, part.examples - 1} <= set(places.tolist())
        assert len(places) == len(set(places.tolist())) <= part.examples
        assert places.tolist() == sorted(places)
        assert deep.sample(found, part, count).tolist() == places.tolist()
        if count == 10**9:
            assert len(places) == part.examples
    assert sum(len(deep.sample(found, part, 60)) for part in found.shards) in range(60, 72)


def test_the_sample_is_another_one_for_another_data_set(folder: Path) -> None:
    found = manifest.read(folder)
    other = replace(found, content=replace(found.content, version=2))
    first, second = (deep.sample(of, found.shards[0], 300).tolist() for of in (found, other))
    assert first != second


def test_a_shard_of_one_example_is_sampled_once(folder: Path) -> None:
    found = manifest.read(folder)
    one = replace(found.shards[0], examples=1)
    assert deep.sample(found, one, 10).tolist() == [0]


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
    found = manifest.read(folder)
    one, other, *rest = found.shards
    facts = [{"bytes": s.bytes, "sha256": s.sha256} for s in (one, other)]
    names = [replace(one, name=other.name, **facts[1]), replace(other, name=one.name, **facts[0])]
    manifest.write(folder, replace(found, shards=(*names, *rest)))
    assert len(compared(folder, 1)[0]) == 2


def test_a_chunk_that_cannot_be_read_is_a_fault(folder: Path) -> None:
    with h5py.File(folder / NAME) as file:
        place = file["images"].id.get_chunk_info(0).byte_offset
    with (folder / NAME).open("r+b") as file:
        file.seek(place)
        file.write(b"\x5a" * 64)  # not 0xff: to Fletcher32 0xffff is 0
    rehash(folder)
    (said,) = compared(folder, 1)[0]
    assert said.startswith(f"{NAME}: unreadable: cannot be read")


def test_shards_that_are_known_to_be_damaged_are_left_out(folder: Path) -> None:
    (folder / NAME).unlink()
    found = manifest.read(folder)
    faults, number = deep.compare(folder, found, again.job(found), 1, frozenset({NAME}))
    assert (faults, number) == ([], 2 * 5)


def test_a_manifest_of_another_source_is_refused_naming_both(folder: Path) -> None:
    found = manifest.read(folder)
    other = replace(found.content, origin=Origin("digits", "0" * 64))
    with pytest.raises(DataError, match=r"origin\.sha256: 0{64} in index\.json, [0-9a-f]{64} here"):
        again.job(replace(found, content=other))


def test_a_manifest_of_another_generator_is_refused(folder: Path) -> None:
    found = manifest.read(folder)
    with pytest.raises(DataError, match=r"version: 9 in index\.json, 1 here"):
        again.job(replace(found, content=replace(found.content, version=9)))


def test_counts_that_the_source_does_not_give_are_refused(folder: Path) -> None:
    found = manifest.read(folder)
    other = replace(found.content, splits={"train": 2874, "test": 721})
    with pytest.raises(DataError, match=r"splits\.test: 721"):
        again.job(replace(found, content=other))


def test_without_the_source_the_error_says_where_it_is_looked_for(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = manifest.read(folder)
    other = replace(found.content, origin=Origin("mnist", "0" * 64))
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(DataError, match="is absent") as caught:
        again.job(replace(found, content=other), str(empty), ["dataset.reader.mirrors=[]"])
    assert str(empty) in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"seed": "x"}, ConfigError),
        ({"seed": {"a": 1}}, ConfigError),
        ({"shift": -5}, ConfigError),
        ({"rotation": 1}, DataError),
        ({"validation": 10**9}, ConfigError),
    ],
)
def test_settings_that_no_job_has_are_refused(
    folder: Path, settings: dict[str, object], error: type[UserError]
) -> None:
    found = manifest.read(folder)
    other = replace(found.content, settings={**found.content.settings, **settings})
    with pytest.raises(error):
        again.job(replace(found, content=other))


def test_settings_other_than_the_defaults_are_made_again(tmp_path: Path) -> None:
    made = shard_folders.job(
        "dataset.batches.seed=5", "dataset.batches.shift=6", "dataset.validation=100"
    )
    shard_folders.make(tmp_path, made, shards=2)
    assert compared(tmp_path, 100)[0] == []
    assert set(again.asked(made.content)) >= {
        "dataset.source=digits",
        "dataset.batches.seed=5",
        "dataset.batches.shift=6",
        "dataset.validation=100",
    }


def test_a_virtual_data_set_is_held_against_its_source(tmp_path: Path) -> None:
    found = shard_folders.make(tmp_path, store="virtual")
    assert again.job(found).content == found.content
    assert compared(tmp_path, 10) == ([], 0)


@pytest.mark.parametrize(
    ("text", "count"), [("1", 1), ("4000", 1000), ("100%", 1000), ("2.5%", 25), ("0.01%", 1)]
)
def test_a_sample_is_a_number_or_a_share(text: str, count: int) -> None:
    assert deep.count_of(text, 1000) == count


@pytest.mark.parametrize("text", ["0", "-1", "0%", "101%", "x", "1.5", "nan", "inf", "nan%", ""])
def test_a_sample_that_is_neither_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--sample"):
        deep.count_of(text, 1000)


def test_minus_zero_is_not_zero_and_nan_is_itself() -> None:
    assert not deep._equal(np.array([0.0]), np.array([-0.0]))
    assert deep._equal(np.array([np.nan]), np.array([np.nan]))
