"""Shards in an object store: each fetched on its first use, and only what is declared."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from s3_server import S3Server

from capsweep.data.images import Reader
from capsweep.errors import DataError
from capsweep.shards.groups import read_range
from capsweep.shards.manifest import INDEX, Manifest
from capsweep.shards.reader import ShardReader
from capsweep.shards.shard_verifier import ShardVerifier
from capsweep.storage import official_files

PLACE = "bucket/pairs"


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
