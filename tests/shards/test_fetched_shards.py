"""Shards in an object store: each fetched on its first use, and only what is declared."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from s3_objects import S3Server

from capsweep.data.images import Reader
from capsweep.errors import DataError
from capsweep.shards.batches import ShardLoader
from capsweep.shards.groups import read_range
from capsweep.shards.manifest import INDEX, Manifest
from capsweep.shards.reader import ShardReader
from capsweep.shards.shard_verifier import ShardVerifier
from capsweep.storage import official_files

PLACE = "bucket/pairs"

# One process of a node: reads all training images of a folder of shards.
TRIAL = """
import sys
from capsweep.storage import official_files
from capsweep.shards import manifest
from capsweep.shards.groups import read_range
from capsweep.shards.reader import StoredRanges

folder = next(official_files.find_current([sys.argv[1]], manifest.INDEX, lambda path: True))
examples = StoredRanges(folder, manifest.read_manifest(folder), "train", ["images"])
print(read_range(examples, 0, len(examples))["images"].sum())
"""


@pytest.fixture
def uploaded(pixels: tuple[Path, Manifest], store: S3Server) -> Manifest:
    """A folder of shards in the store."""
    store.upload(pixels[0], PLACE)
    return pixels[1]


def make_reader(whole: Manifest, *folders: str) -> ShardReader:
    """Of the data set of a manifest."""
    digits = cast(Reader, None)  # never asked: all that is wanted is stored
    origin = whole.content.origin.sha256
    return ShardReader(whole.content.fingerprint, folders or (".",), digits, origin, targets=True)


def read_images(examples: Any, count: int) -> np.ndarray:
    """The first examples."""
    return read_range(examples, 0, count)["images"]


def test_index_first_then_shards_on_their_first_use(
    pixels: tuple[Path, Manifest], uploaded: Manifest, store: S3Server
) -> None:
    url = store.url(PLACE)
    make_reader(uploaded).check(url)
    assert store.count("GET") == store.count("GET", INDEX) == 1
    splits = make_reader(uploaded).open(url)
    here = make_reader(uploaded).open(str(pixels[0]))
    assert np.array_equal(read_images(splits["train"], 10), read_images(here["train"], 10))
    assert store.count("GET", ".h5") == 1
    count = len(splits["train"])
    assert np.array_equal(read_images(splits["train"], count), read_images(here["train"], count))
    assert store.count("GET", ".h5") == len(uploaded.shards_of("train"))
    store.forget()
    read_images(make_reader(uploaded).open(url)["train"], count)
    assert store.total == 0


@pytest.mark.parametrize("below", ["shards", "s3 itself"])
def test_the_folder_may_be_named_below_the_place_or_as_a_url(
    below: str, uploaded: Manifest, store: S3Server, tmp_path: Path
) -> None:
    for name in [name for name in store.objects if name.startswith(PLACE)]:
        store.put(f"bucket/data/shards/{name.rpartition('/')[2]}", store.objects[name])
    url = store.url("bucket/data/shards")
    given, folder = (below, store.url("bucket/data")) if below == "shards" else (url, str(tmp_path))
    make_reader(uploaded, "nowhere", given).check(folder)


@pytest.mark.slow
def test_four_processes_at_once_fetch_each_shard_once(uploaded: Manifest, store: S3Server) -> None:
    trials = [
        subprocess.Popen(
            [sys.executable, "-c", TRIAL, store.url(PLACE)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    said = {process.communicate(timeout=120)[0] for process in trials}
    assert len(said) == 1
    assert "" not in said
    for name in (INDEX, *(shard.name for shard in uploaded.shards_of("train"))):
        assert store.count("GET", name) == 1


def test_workers_of_a_loader_fetch_each_shard_once(uploaded: Manifest, store: S3Server) -> None:
    examples = make_reader(uploaded).open(store.url(PLACE))["train"]
    batches = ShardLoader(
        examples, torch.device("cpu"), 64, len(examples), seed=0, rank=0, world_size=1, workers=2
    )
    shown = [batch.images_BCHW for batch in batches]
    assert sum(map(len, shown)) == len(examples)
    for shard in uploaded.shards_of("train"):
        assert store.count("GET", shard.name) == 1


def test_an_altered_shard_is_refused_and_does_not_stay(uploaded: Manifest, store: S3Server) -> None:
    shard = uploaded.shards_of("train")[0]
    content = store.objects[f"{PLACE}/{shard.name}"]
    store.put(f"{PLACE}/{shard.name}", content[:-1] + b"!")
    splits = make_reader(uploaded).open(store.url(PLACE))
    with pytest.raises(DataError, match=rf"^places\.data=.*{shard.name} is truncated or altered"):
        read_images(splits["train"], 1)
    folder = official_files.local_folder(store.url(PLACE))
    assert {path.name for path in folder.iterdir() if path.name[0] != "."} <= {INDEX}


def test_a_shard_that_is_absent_or_of_another_size_is_told_before_anything_runs(
    uploaded: Manifest, store: S3Server
) -> None:
    shard = uploaded.shards_of("train")[0]
    content = store.objects.pop(f"{PLACE}/{shard.name}")
    with pytest.raises(
        DataError, match=rf"^places\.data: .*{shard.name}: no bytes.*copy the whole"
    ):
        make_reader(uploaded).check(store.url(PLACE))
    store.put(f"{PLACE}/{shard.name}", content[:-1])
    with pytest.raises(DataError, match=rf"{shard.name}: {len(content) - 1} bytes"):
        make_reader(uploaded).check(store.url(PLACE))
    store.put(f"{PLACE}/{shard.name}", content)
    make_reader(uploaded).check(store.url(PLACE))


def test_another_data_set_at_the_place_is_refused_and_the_right_one_fetched_later(
    uploaded: Manifest, store: S3Server
) -> None:
    index = store.objects[f"{PLACE}/{INDEX}"]
    other = json.loads(index)
    other["content"]["settings"]["pairs"] = 77
    content = replace(uploaded.content, settings={**uploaded.content.settings, "pairs": 77})
    other["fingerprint"] = content.fingerprint
    store.put(f"{PLACE}/{INDEX}", json.dumps(other).encode())
    with pytest.raises(DataError, match=r"dataset\.shards\.fingerprint is"):
        make_reader(uploaded).check(store.url(PLACE))
    store.put(f"{PLACE}/{INDEX}", index)
    make_reader(uploaded).check(store.url(PLACE))


def test_a_damaged_copy_in_the_cache_is_removed_and_fetched_again(
    uploaded: Manifest, store: S3Server
) -> None:
    read_images(make_reader(uploaded).open(store.url(PLACE))["train"], 1)
    folder, shard = official_files.local_folder(store.url(PLACE)), uploaded.shards_of("train")[0]
    content = (folder / shard.name).read_bytes()
    (folder / shard.name).write_bytes(content[:-1] + b"!")
    verifier = ShardVerifier(folder, uploaded)
    with pytest.raises(DataError, match="altered in the cache, and removed"):
        verifier.open_shard(shard)
    verifier.open_shard(shard).close()
    assert (folder / shard.name).read_bytes() == content
