"""Ranges of a split: the examples that are composed on the fly, and never a wrong byte; of an
object store each shard is fetched on its first use.
"""

import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import shard_folders
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from s3_server import S3Server
from shard_folders import Folder

from capsweep.data.images import Reader, Splits
from capsweep.errors import DataError
from capsweep.shards import verify
from capsweep.shards.layout import make_pair_source
from capsweep.shards.manifest import INDEX, Manifest
from capsweep.shards.reader import ShardReader, StoredRanges, open_shard_once, read_range
from capsweep.shards.verify import ShardVerifier
from capsweep.storage import official_files
from capsweep.storage.files import user_cache_folder

NAME = "train-00000.h5"
COUNT = 2874


@at_most_examples(30)
@given(st.integers(0, COUNT), st.integers(0, COUNT))
def test_a_range_is_the_same_over_any_bounds_of_shards(
    pixels: Folder, one: int, other: int
) -> None:
    start, stop = sorted((one, other))
    read = read_range(StoredRanges(*pixels, "train"), start, stop)
    made = shard_folders.job().build_maker("train")(start, stop)
    assert list(read) == ["images", "labels"]
    for name, array in read.items():
        np.testing.assert_array_equal(array, made[name])


# A fork of this very process is what is asked about; Python 3.12 warns of every one.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_no_handle_crosses_into_another_process(pixels: Folder, method: str) -> None:
    stored = StoredRanges(*pixels, "train")
    expected = read_range(stored, 0, len(stored))["images"]
    context: Any = multiprocessing.get_context(method)
    mine, theirs = context.Pipe()
    # A fork inherits the object as it is, with what it has open; a spawned one gets a pickle.
    process = context.Process(target=read_elsewhere, args=(stored, theirs))
    process.start()
    opened_by_it, read_by_it = mine.recv()
    for start in range(0, COUNT, 500):  # both at once: no offset in a file is shared
        part = read_range(stored, start, min(start + 500, COUNT))["images"]
        np.testing.assert_array_equal(part, expected[start : start + 500])
    process.join()
    assert process.exitcode == 0
    np.testing.assert_array_equal(read_by_it, expected)
    assert opened_by_it == 3


def read_elsewhere(stored: StoredRanges, answer: Any) -> None:
    """Answers how many shards this process itself has opened, and what it reads."""
    before = open_shard_once.cache_info().misses
    read = read_range(stored, 0, len(stored))["images"]
    answer.send((open_shard_once.cache_info().misses - before, read))


def test_a_bit_that_flips_after_the_hash_is_found_by_the_checksum_of_its_chunk(
    spoiled: Folder,
) -> None:
    folder, whole = spoiled
    stored = StoredRanges(folder, whole, "train")
    read_range(stored, 0, 1)  # hashed, and open
    shard_folders.flip_bit(folder / NAME, shard_folders.pixel_place(folder / NAME))
    with pytest.raises(DataError, match=rf"{NAME}: .*; run the same"):
        read_range(stored, 500, 900)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are hashed."""
    names: list[str] = []
    hash_file = verify.hash_file
    monkeypatch.setattr(
        verify, "hash_file", lambda path: names.append(path.name) or hash_file(path)
    )
    return names


def open_all(folder: Path, whole: Manifest) -> None:
    """As another process would, that knows of no shard what it is."""
    for shard in whole.shards:
        ShardVerifier(folder, whole).open_shard(shard).close()


def test_a_shard_is_hashed_once_over_all_processes(spoiled: Folder, hashed: list[str]) -> None:
    folder, whole = spoiled
    for _ in range(2):
        open_all(folder, whole)
    assert hashed == [shard.name for shard in whole.shards]
    shutil.rmtree(user_cache_folder() / "computed" / "shards")
    open_all(folder, whole)
    assert len(hashed) == 2 * len(whole.shards)


def test_a_change_is_found_though_its_time_is_set_back(spoiled: Folder) -> None:
    folder, whole = spoiled
    before = (folder / NAME).stat()
    open_all(folder, whole)
    shard_folders.flip_bit(folder / NAME, 5000)
    os.utime(folder / NAME, ns=(before.st_atime_ns, before.st_mtime_ns))
    message = rf"{NAME}: sha256 [0-9a-f]{{64}}, but {whole.shards[0].sha256} in index.json; "
    with pytest.raises(DataError, match=f"{message}run the same `make shards` command again"):
        open_all(folder, whole)


def test_a_file_of_this_moment_is_hashed_at_each_opening(
    spoiled: Folder, hashed: list[str]
) -> None:
    folder, whole = spoiled
    (folder / NAME).touch()
    open_all(folder, whole)
    open_all(folder, whole)
    assert hashed.count(NAME) == 2
    shard_folders.flip_bit(folder / NAME, 5000)  # within the same tick, perhaps
    with pytest.raises(DataError, match="sha256"):
        open_all(folder, whole)


@pytest.mark.parametrize("margin", [None, "wide", [4], -1])
def test_settings_of_pairs_that_are_no_numbers_are_refused(margin: object) -> None:
    settings = {**shard_folders.job().content.settings, "margin": margin}
    with pytest.raises(DataError, match=r"^index\.json: settings\.margin is "):
        make_pair_source(cast(Splits, None), "train", settings)


PLACE = "bucket/pairs"


@pytest.fixture
def uploaded(pixels: Folder, store: S3Server) -> Manifest:
    """A folder of shards in the store."""
    store.upload(pixels[0], PLACE)
    return pixels[1]


def make_reader(whole: Manifest) -> ShardReader:
    """Of the data set of a manifest."""
    digits = cast(Reader, None)  # never asked: all that is wanted is stored
    origin = whole.content.origin.sha256
    return ShardReader(whole.content.fingerprint, (".",), digits, origin, targets=False)


def read_images(examples: Any, count: int) -> np.ndarray:
    """The first examples."""
    return read_range(examples, 0, count)["images"]


def test_index_first_then_shards_on_their_first_use(
    pixels: Folder, uploaded: Manifest, store: S3Server
) -> None:
    url = store.url(PLACE)
    make_reader(uploaded).check(url)
    assert store.count("GET") == store.count("GET", INDEX) == 1
    splits = make_reader(uploaded).read(url)
    here = make_reader(uploaded).read(str(pixels[0]))
    assert np.array_equal(read_images(splits.train, 10), read_images(here.train, 10))
    assert store.count("GET", ".h5") == 1
    assert np.array_equal(read_images(splits.train, COUNT), read_images(here.train, COUNT))
    assert store.count("GET", ".h5") == len(uploaded.list_shards("train"))
    store.asked.clear()
    read_images(make_reader(uploaded).read(url).train, COUNT)
    assert store.total == 0


def test_a_shard_that_is_absent_or_of_another_size_is_told_before_anything_runs(
    uploaded: Manifest, store: S3Server
) -> None:
    shard = uploaded.list_shards("train")[0]
    content = store.objects.pop(f"{PLACE}/{shard.name}")
    with pytest.raises(
        DataError, match=rf"^places\.data: .*{shard.name}: no bytes.*copy the whole"
    ):
        make_reader(uploaded).check(store.url(PLACE))
    store.objects[f"{PLACE}/{shard.name}"] = content[:-1]
    with pytest.raises(DataError, match=rf"{shard.name}: {len(content) - 1} bytes"):
        make_reader(uploaded).check(store.url(PLACE))


def test_a_copy_that_is_not_the_shard_of_the_manifest_is_fetched_again(
    uploaded: Manifest, store: S3Server
) -> None:
    read_images(make_reader(uploaded).read(store.url(PLACE)).train, 1)
    folder, shard = official_files.locate_folder(store.url(PLACE)), uploaded.list_shards("train")[0]
    content = (folder / shard.name).read_bytes()
    (folder / shard.name).write_bytes(content[:-1] + b"!")
    verifier = ShardVerifier(folder, uploaded)
    verifier.open_shard(shard).close()
    assert (folder / shard.name).read_bytes() == content
