"""Disk and object store behave alike to who reads and writes; what a store over HTTP costs."""

import json
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest
from s3_server import S3Server

from capsweep.errors import ConfigError, UserError
from capsweep.ledger import causes, stored_files
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.storage.stores import PIECE, Bucket, join, open_store, prove_writable

CELLS = [f"{number:02x}{number:014x}" for number in range(256)]


@pytest.fixture
def in_s3(store: S3Server) -> Ledger:
    """An empty ledger in it."""
    return Ledger(store.url("bucket/x/ledger"))


def test_files_come_back_as_they_were_written_until_they_are_removed(ledger: Ledger) -> None:
    store = ledger.store
    assert store.read("no/such") is None
    assert store.list_names("nowhere") == []
    store.remove("no/such")
    for name, content in (("ab/cd/one", b"1"), ("ab/cd/two", b"22"), ("b/three", b"")):
        store.write(name, content)
    assert store.read("ab/cd/two") == b"22"
    assert store.list_names("ab/cd") == ["one", "two"]
    assert list(store.list_files("ab")) == [("ab/cd/one", 1), ("ab/cd/two", 2)]
    store.remove("ab")
    store.remove("b/three")
    assert store.list_names("ab") == []
    assert store.read("b/three") is None


def test_a_place_that_means_nothing_or_cannot_be_written_names_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"places\.ledger=nonsense://bucket"):
        open_store("nonsense://bucket/ledger")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"places\.ledger=.*/file is not a folder; choose another"):
        open_store(tmp_path / "file" / "ledger")
    with pytest.raises(UserError, match=r"places\.ledger: .* cannot be written"):
        prove_writable(open_store("/proc/ledger"))


def test_files_of_any_size_come_back_and_a_small_one_is_one_request(
    in_s3: Ledger, store: S3Server, tmp_path: Path
) -> None:
    bucket = in_s3.store
    assert isinstance(bucket, Bucket)
    bucket.write("ab/one", b"1")
    assert store.total == 1
    large = bytes(range(256)) * (2 * PIECE // 256) + b"end"
    (tmp_path / "large").write_bytes(large)
    bucket.copy_from("ab/weights.gz", tmp_path / "large")  # no codec by the name
    back = BytesIO()
    bucket.copy_to("ab/weights.gz", back)
    assert back.getvalue() == large == bucket.read("ab/weights.gz")
    assert store.objects["bucket/x/ledger/ab/weights.gz"] == large
    bucket.remove("ab")
    with pytest.raises(FileNotFoundError):
        bucket.copy_to("ab/weights.gz", back)


def test_several_may_remove_one_file_at_once(in_s3: Ledger, store: S3Server) -> None:
    with ThreadPoolExecutor(4) as pool:
        for number in range(10):  # each asks whether it is there before it removes it
            store.objects[f"bucket/x/ledger/{number}"] = b"1"
            list(pool.map(in_s3.store.remove, [str(number)] * 4))
    assert in_s3.store.list_names("") == []


def test_a_thousand_cells_cost_a_listing_and_what_is_finished(
    in_s3: Ledger, store: S3Server
) -> None:
    many = [f"{cell[:2]}{cell[:-2]}{part:02x}" for cell in CELLS for part in range(4)][:1000]
    result = json.dumps(stored_files.with_digests({"metrics": {}}, {})).encode()
    for cell in many[:100]:
        store.objects[f"bucket/x/ledger/{folder_of(cell)}/result.json"] = result
    for cell in many[100:110]:
        store.objects[f"bucket/x/ledger/{folder_of(cell)}/error.txt"] = b"DataError: gone\n"
    states = [entry.status for entry in in_s3.read_entries(many).values()]
    assert (states.count("done"), states.count("failed")) == (100, 10)
    assert store.count("LIST") == 1
    assert store.count("HEAD", "result.json") == 100 + 10  # for the failed, who made them
    assert store.total < 300


@pytest.mark.parametrize("status", [403, pytest.param(503, marks=pytest.mark.slow)])
def test_a_store_that_refuses_is_one_line_naming_the_key(
    status: int, in_s3: Ledger, store: S3Server
) -> None:
    store.refuses = status
    with pytest.raises(UserError, match=r"^places\.ledger=s3://bucket/x/ledger: .*AWS_") as refused:
        in_s3.read_entry(CELLS[0])
    assert causes.classify_cause(causes.describe_cause(refused.value)) not in causes.DETERMINISTIC
    with pytest.raises(UserError, match=r"^places\.ledger"):
        prove_writable(in_s3.store)


def test_the_query_of_a_url_stays_last() -> None:
    assert join("s3://bucket/x?region=a", "ledger") == "s3://bucket/x/ledger?region=a"
    assert join("s3://bucket/x/", "ledger") == "s3://bucket/x/ledger"
    assert join("/data", "ledger") == "/data/ledger"
