"""Shards in an object store: each fetched on its first use, and only what is declared."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from s3_objects import S3Server

from capsweep.data.images import Reader
from capsweep.errors import DataError
from capsweep.shards import manifest
from capsweep.shards.batches import ShardLoader
from capsweep.shards.manifest import INDEX, Manifest
from capsweep.shards.ranges import make_room, read_range
from capsweep.shards.reader import ShardReader
from capsweep.shards.stored_ranges import StoredRanges
from capsweep.shards.verified_files import ShardVerifier
from capsweep.storage import official_files

PLACE = "bucket/pairs"

# One process of a node: reads all training images of a folder of shards.
TRIAL = """
import sys
from capsweep.storage import official_files
from capsweep.shards import manifest, ranges
from capsweep.shards.stored_ranges import StoredRanges

folder = next(official_files.find_current([sys.argv[1]], manifest.INDEX, manifest.is_whole))
examples = StoredRanges(folder, manifest.read_manifest(folder), "train", ["images"])
print(ranges.read_range(examples, 0, len(examples))["images"].sum())
"""


@pytest.fixture
def there(pixels: tuple[Path, Manifest], store: S3Server) -> Manifest:
    """A folder of shards in the store."""
    store.upload(pixels[0], PLACE)
    return pixels[1]


def reader(whole: Manifest, *folders: str) -> ShardReader:
    """Of the data set of a manifest."""
    digits = cast(Reader, None)  # never asked: all that is wanted is stored
    origin = whole.content.origin.sha256
    return ShardReader(whole.content.fingerprint, folders or (".",), digits, origin, targets=True)


def images(examples: Any, count: int) -> np.ndarray:
    """The first examples."""
    return read_range(examples, 0, count)["images"]


def test_index_first_then_shards_on_their_first_use(
    pixels: tuple[Path, Manifest], there: Manifest, store: S3Server
) -> None:
    url = store.url(PLACE)
    reader(there).check(url)
    assert store.count("GET") == store.count("GET", INDEX) == 1
    splits = reader(there).open(url)
    here = reader(there).open(str(pixels[0]))
    assert np.array_equal(images(splits["train"], 10), images(here["train"], 10))
    assert store.count("GET", ".h5") == 1
    count = len(splits["train"])
    assert np.array_equal(images(splits["train"], count), images(here["train"], count))
    assert store.count("GET", ".h5") == len(there.shards_of("train"))
    store.forget()
    images(reader(there).open(url)["train"], count)
    assert store.total == 0


@pytest.mark.parametrize("below", ["shards", "s3 itself"])
def test_the_folder_may_be_named_below_the_place_or_as_a_url(
    below: str, there: Manifest, store: S3Server, tmp_path: Path
) -> None:
    for name in [name for name in store.objects if name.startswith(PLACE)]:
        store.put(f"bucket/data/shards/{name.rpartition('/')[2]}", store.objects[name])
    url = store.url("bucket/data/shards")
    given, folder = (below, store.url("bucket/data")) if below == "shards" else (url, str(tmp_path))
    reader(there, "nowhere", given).check(folder)


@pytest.mark.slow
def test_four_processes_at_once_fetch_each_shard_once(there: Manifest, store: S3Server) -> None:
    trials = [
        subprocess.Popen(
            [sys.executable, "-c", TRIAL, store.url(PLACE)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    said = {process.communicate(timeout=120)[0] for process in trials}
    assert len(said) == 1
    assert "" not in said
    for name in (INDEX, *(shard.name for shard in there.shards_of("train"))):
        assert store.count("GET", name) == 1


def test_workers_of_a_loader_fetch_each_shard_once(there: Manifest, store: S3Server) -> None:
    examples = reader(there).open(store.url(PLACE))["train"]
    batches = ShardLoader(
        examples, torch.device("cpu"), 64, len(examples), seed=0, rank=0, world_size=1, workers=2
    )
    shown = [batch.images_BCHW for batch in batches]
    assert sum(map(len, shown)) == len(examples)
    for shard in there.shards_of("train"):
        assert store.count("GET", shard.name) == 1


def test_an_altered_shard_is_refused_and_does_not_stay(there: Manifest, store: S3Server) -> None:
    shard = there.shards_of("train")[0]
    content = store.objects[f"{PLACE}/{shard.name}"]
    store.put(f"{PLACE}/{shard.name}", content[:-1] + b"!")
    splits = reader(there).open(store.url(PLACE))
    with pytest.raises(DataError, match=rf"^places\.data=.*{shard.name} is truncated or altered"):
        images(splits["train"], 1)
    folder = official_files.local_folder(store.url(PLACE))
    assert {path.name for path in folder.iterdir() if path.name[0] != "."} <= {INDEX}


def test_a_shard_that_is_absent_or_of_another_size_is_told_before_anything_runs(
    there: Manifest, store: S3Server
) -> None:
    shard = there.shards_of("train")[0]
    content = store.objects.pop(f"{PLACE}/{shard.name}")
    with pytest.raises(
        DataError, match=rf"^places\.data: .*{shard.name}: no bytes.*copy the whole"
    ):
        reader(there).check(store.url(PLACE))
    store.put(f"{PLACE}/{shard.name}", content[:-1])
    with pytest.raises(DataError, match=rf"{shard.name}: {len(content) - 1} bytes"):
        reader(there).check(store.url(PLACE))
    store.put(f"{PLACE}/{shard.name}", content)
    reader(there).check(store.url(PLACE))


def test_another_data_set_at_the_place_is_refused_and_the_right_one_fetched_later(
    there: Manifest, store: S3Server
) -> None:
    index = store.objects[f"{PLACE}/{INDEX}"]
    other = json.loads(index)
    other["content"]["settings"]["pairs"] = 77
    made = manifest.parse_content(other["content"])
    other["fingerprint"] = made.fingerprint
    store.put(f"{PLACE}/{INDEX}", json.dumps(other).encode())
    with pytest.raises(DataError, match=r"dataset\.shards\.fingerprint is"):
        reader(there).check(store.url(PLACE))
    store.put(f"{PLACE}/{INDEX}", index)
    reader(there).check(store.url(PLACE))


@pytest.mark.parametrize(
    "name",
    ["../evil.h5", "/etc/evil.h5", "a/b.h5", "s3:--x.h5", "x.h5?versionId=1", "..", "%2e.h5"],
)
def test_a_manifest_names_nothing_outside_its_folder(
    name: str, there: Manifest, store: S3Server
) -> None:
    plain = json.loads(store.objects[f"{PLACE}/{INDEX}"])
    plain["shards"][0]["name"] = name
    store.put(f"{PLACE}/{INDEX}", json.dumps(plain).encode())
    with pytest.raises(DataError, match=r"index\.json"):
        reader(there).check(store.url(PLACE))
    folder = official_files.local_folder(store.url(PLACE))
    assert store.count("GET") == store.count("GET", INDEX)
    assert {path.name for path in folder.iterdir() if path.name[0] != "."} <= {INDEX}


def test_a_damaged_copy_in_the_cache_is_removed_and_fetched_again(
    there: Manifest, store: S3Server
) -> None:
    images(reader(there).open(store.url(PLACE))["train"], 1)
    folder, shard = official_files.local_folder(store.url(PLACE)), there.shards_of("train")[0]
    content = (folder / shard.name).read_bytes()
    (folder / shard.name).write_bytes(content[:-1] + b"!")
    with pytest.raises(DataError, match="altered in the cache, and removed"):
        ShardVerifier(folder).verified_path(shard)
    assert ShardVerifier(folder).verified_path(shard).read_bytes() == content
    (folder / shard.name).write_bytes(content[:-1])
    assert ShardVerifier(folder).verified_path(shard).read_bytes() == content


def test_stretches_of_a_store_cross_to_another_process_by_their_folder(
    there: Manifest, store: S3Server
) -> None:
    folder = next(official_files.find_current([store.url(PLACE)], INDEX, manifest.is_whole))
    assert official_files.read_origin(folder) == store.url(PLACE)
    examples = StoredRanges(folder, there, "train", ["images"])
    arrays = make_room(examples.fields, 3)
    examples.read_into(0, arrays)
    assert arrays["images"].any()
    assert os.path.isabs(folder)
