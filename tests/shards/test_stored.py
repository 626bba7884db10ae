"""Stretches of a split: the same examples however they are stored, and never a wrong byte."""

import multiprocessing
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import shard_folders
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples

from capsweep.data.batches import ExampleRanges, Split
from capsweep.errors import DataError
from capsweep.shards import ranges, stored_ranges
from capsweep.shards.manifest import Manifest
from capsweep.shards.ranges import ComposedRanges
from capsweep.shards.stored_ranges import StoredRanges
from capsweep.storage.files import hash_file

Folder = tuple[Path, Manifest]
SPLITS: tuple[Split, ...] = ("train", "test")
COUNT = 2874


def composed(split: Split = "train") -> ComposedRanges:
    """The same data set without files."""
    count = shard_folders.job().content.splits[split]
    return ComposedRanges(shard_folders.source(split), count)


@pytest.mark.parametrize("split", SPLITS)
def test_every_example_in_a_shard_is_the_one_composed_on_the_fly(
    pixels: Folder, split: Split
) -> None:
    there, made = StoredRanges(*pixels, split), composed(split)
    assert len(there) == len(made) == pixels[1].content.splits[split]
    assert list(there.fields) == list(made.fields)
    read, expected = ranges.read_range(there, 0, len(there)), ranges.read_range(made, 0, len(made))
    for name in expected:
        assert read[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(read[name], expected[name])


@at_most_examples(30)
@given(st.integers(0, COUNT), st.integers(0, COUNT))
def test_a_stretch_is_the_same_over_any_bounds_of_shards(
    pixels: Folder, one: int, other: int
) -> None:
    there = StoredRanges(*pixels, "train", ["labels", "indices"])
    start, stop = sorted((one, other))
    read, made = ranges.read_range(there, start, stop), ranges.read_range(composed(), start, stop)
    assert list(read) == ["labels", "indices"]
    for name, array in read.items():
        np.testing.assert_array_equal(array, made[name])


@pytest.mark.parametrize("bounds", [(-1, 3), (0, COUNT + 1), (COUNT, COUNT + 1)])
def test_what_is_beyond_a_split_is_no_example(pixels: Folder, bounds: tuple[int, int]) -> None:
    for there in (StoredRanges(*pixels, "train"), composed()):
        with pytest.raises(IndexError, match=f"of {COUNT}"):
            ranges.read_range(there, *bounds)


# A fork of this very process is what is asked about; Python 3.12 warns of every one.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_no_handle_crosses_into_another_process(pixels: Folder, method: str) -> None:
    there = StoredRanges(*pixels, "train", ["images"])
    expected = ranges.read_range(there, 0, len(there))["images"]
    assert open_shards(pixels[0]) == 3
    context: Any = multiprocessing.get_context(method)
    mine, theirs = context.Pipe()
    # A fork inherits the object as it is, with what it has open; a spawned one gets a pickle.
    process = context.Process(target=read_there, args=(there, theirs))
    process.start()
    opened_by_it, read_by_it = mine.recv()
    for start in range(0, COUNT, 500):  # both at once: no offset in a file is shared
        part = ranges.read_range(there, start, min(start + 500, COUNT))["images"]
        np.testing.assert_array_equal(part, expected[start : start + 500])
    process.join()
    assert process.exitcode == 0
    np.testing.assert_array_equal(read_by_it, expected)
    assert opened_by_it == 3


def read_there(there: StoredRanges, answer: Any) -> None:
    """Answers how many shards this process itself has opened, and what it reads."""
    read = ranges.read_range(there, 0, len(there))["images"]
    answer.send((len(there.open_files()), read))


def open_shards(folder: Path) -> int:
    """Files of a folder that this process has open."""
    links = Path("/proc/self/fd")
    opened = {os.path.realpath(link) for link in links.iterdir()}
    return sum(path.startswith(f"{folder}/") for path in opened)


def test_a_pickle_has_neither_handles_nor_pixels(pixels: Folder) -> None:
    there = StoredRanges(*pixels, "train")
    ranges.read_range(there, 0, 10)
    content = pickle.dumps(there)
    assert len(content) < 5000
    copy = pickle.loads(content)
    np.testing.assert_array_equal(
        ranges.read_range(copy, 5, 9)["images"], ranges.read_range(there, 5, 9)["images"]
    )


def test_few_files_are_open_at_once(pixels: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_ranges, "OPEN", 2)
    there, made = StoredRanges(*pixels, "train", ["labels"]), composed()
    before = open_shards(pixels[0])
    for start in (0, 1000, 2000, 100, 1100):
        read = ranges.read_range(there, start, start + 10)["labels"]
        np.testing.assert_array_equal(read, ranges.read_range(made, start, start + 10)["labels"])
        assert len(there.open_files()) <= 2
    assert open_shards(pixels[0]) <= before + 2


def test_a_shard_that_is_not_touched_is_not_asked_for(spoiled: Folder) -> None:
    folder, whole = spoiled
    (folder / "train-00002.h5").unlink()
    there = StoredRanges(folder, whole, "train")
    assert len(ranges.read_range(there, 0, 1500)["labels"]) == 1500
    with pytest.raises(DataError, match=r"train-00002.h5: no such file"):
        ranges.read_range(there, 1900, 1920)


def test_shards_that_changed_places_are_never_read(
    spoiled: Folder, aged: Callable[[Path], None]
) -> None:
    folder, whole = spoiled
    one, other = folder / "train-00000.h5", folder / "train-00001.h5"
    one.rename(folder / "kept")
    other.rename(one)
    (folder / "kept").rename(other)
    with pytest.raises(DataError, match=r"train-00000.h5: .*altered"):
        ranges.read_range(StoredRanges(folder, whole, "train"), 0, 1)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("fingerprint", "0" * 64, "fingerprint is 0{64}, .* in index.json; it is a shard of"),
        ("split", "test", "split is test, train in index.json"),
        ("first", 7, "first is 7, 0 in index.json"),
    ],
)
def test_what_a_shard_says_of_itself_must_be_what_the_manifest_says(
    spoiled: Folder, name: str, value: Any, message: str
) -> None:
    folder, whole = spoiled
    with h5py.File(folder / "train-00000.h5", "r+") as file:
        file.attrs[name] = value
    with pytest.raises(DataError, match=f"train-00000.h5: {message}"):
        ranges.read_range(StoredRanges(folder, hashed_again(folder, whole), "train"), 0, 1)


def test_attributes_and_data_sets_of_any_kind_are_refused_and_no_crash(spoiled: Folder) -> None:
    folder, whole = spoiled
    with h5py.File(folder / "train-00000.h5", "r+") as file:
        file.attrs["first"] = np.zeros(3)
    with h5py.File(folder / "train-00001.h5", "r+") as file:
        del file["labels"]
        file["labels"] = h5py.ExternalLink("train-00002.h5", "labels")
    there = StoredRanges(folder, hashed_again(folder, whole), "train")
    with pytest.raises(DataError, match=r"train-00000.h5: first is array"):
        ranges.read_range(there, 0, 1)
    with pytest.raises(DataError, match=r"train-00001.h5: labels is a link"):
        ranges.read_range(there, 1000, 1001)


def test_a_data_set_of_another_shape_or_none_is_refused(spoiled: Folder) -> None:
    folder, whole = spoiled
    with h5py.File(folder / "train-00000.h5", "r+") as file:
        del file["labels"]
    with h5py.File(folder / "train-00001.h5", "r+") as file:
        del file["labels"]
        file["labels"] = np.zeros((958, 3), np.uint8)
    there = StoredRanges(folder, hashed_again(folder, whole), "train")
    with pytest.raises(DataError, match=r"train-00000.h5: labels is missing, .*; it is a shard of"):
        ranges.read_range(there, 0, 1)
    with pytest.raises(DataError, match=r"train-00001.h5: labels is uint8 \[958, 3\], .*\[958, 2"):
        ranges.read_range(there, 1000, 1001)


def test_a_file_that_is_no_hdf5_is_refused_by_name(spoiled: Folder) -> None:
    folder, whole = spoiled
    (folder / "train-00000.h5").write_bytes(b"no HDF5")
    there = StoredRanges(folder, hashed_again(folder, whole), "train")
    with pytest.raises(DataError, match=r"train-00000.h5: cannot be read"):
        ranges.read_range(there, 0, 1)


def test_a_byte_that_flips_after_the_hash_is_found_by_the_checksum_of_its_chunk(
    spoiled: Folder,
) -> None:
    folder, whole = spoiled
    there = StoredRanges(folder, whole, "train", ["images"])
    ranges.read_range(there, 0, 1)  # hashed, and open
    place = there.open_files()["train-00000.h5"]["images"].id.get_chunk_info(1).byte_offset
    with (folder / "train-00000.h5").open("r+b") as file:
        file.seek(place + 100)
        byte = file.read(1)[0]
        file.seek(place + 100)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(DataError, match=r"train-00000.h5: cannot be read"):
        ranges.read_range(there, 500, 900)


def test_fields_that_are_not_stored_are_told(pixels: Folder) -> None:
    with pytest.raises(DataError, match="its shards have no depth"):
        StoredRanges(*pixels, "train", ["images", "depth"])


def test_a_split_that_the_data_set_has_not_is_empty(pixels: Folder) -> None:
    there = StoredRanges(*pixels, "validation")
    assert len(there) == 0
    assert ranges.read_range(there, 0, 0)["images"].shape == (0, 1, 36, 36)


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_bytes_do_not_depend_on_the_number_of_shards(
    pixels: Folder, tmp_path: Path, shards: int
) -> None:
    folder = tmp_path / "others"
    others = shard_folders.make(folder, shards=shards)
    there: ExampleRanges = StoredRanges(folder, others, "test")
    read = ranges.read_range(there, 0, len(there))
    expected = ranges.read_range(StoredRanges(*pixels, "test", list(read)), 0, len(there))
    for name, array in read.items():
        np.testing.assert_array_equal(array, expected[name])
    shutil.rmtree(folder)


def hashed_again(folder: Path, whole: Manifest) -> Manifest:
    """A manifest that was written for the files as they are now."""
    shards = []
    for shard in whole.shards:
        path = folder / shard.name
        values = {**shard.__dict__, "bytes": path.stat().st_size, "sha256": hash_file(path)}
        shards.append(type(shard)(**values))
    return Manifest(whole.content, whole.store, whole.fields, tuple(shards))
