"""A ledger in an object store, over HTTP: what it costs, and what is said when it fails."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from s3_objects import S3Server

from capsweep.errors import UserError
from capsweep.ledger import causes
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.storage.stores import PIECE, Bucket, join, open_store, prove_writable

CELLS = [f"{number:02x}{number:014x}" for number in range(256)]


@pytest.fixture
def in_s3(store: S3Server) -> Ledger:
    """An empty ledger in it."""
    return Ledger(store.url("bucket/x/ledger"))


def test_files_of_any_size_come_back_as_they_were_written(
    in_s3: Ledger, store: S3Server, tmp_path: Path
) -> None:
    large = bytes(range(256)) * (2 * PIECE // 256) + b"end"
    (tmp_path / "large").write_bytes(large)
    in_s3.store.put("ab/weights.gz", tmp_path / "large")  # no codec by the name
    assert in_s3.store.fetch("ab/weights.gz", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == large == in_s3.store.read("ab/weights.gz")
    assert store.objects["bucket/x/ledger/ab/weights.gz"] == large
    assert in_s3.store.list_names("ab") == ["weights.gz"]
    in_s3.store.remove("ab")
    assert in_s3.store.read("ab/weights.gz") is None
    assert not in_s3.store.fetch("ab/weights.gz", tmp_path / "back")


def test_a_small_file_is_one_request(in_s3: Ledger, store: S3Server) -> None:
    in_s3.store.write("ab/one", b"1")
    assert store.total == 1


def test_several_may_remove_one_file_at_once(in_s3: Ledger, store: S3Server) -> None:
    with ThreadPoolExecutor(4) as pool:
        for number in range(10):  # each asks whether it is there before it removes it
            store.put(f"bucket/x/ledger/{number}", b"1")
            list(pool.map(in_s3.store.remove, [str(number)] * 4))
    assert in_s3.store.list_names("") == []


def test_a_thousand_cells_cost_a_listing_and_what_is_finished(
    in_s3: Ledger, store: S3Server
) -> None:
    many = [f"{cell[:2]}{cell[:-2]}{part:02x}" for cell in CELLS for part in range(4)][:1000]
    for cell in many[:100]:
        store.put(f"bucket/x/ledger/{folder_of(cell)}/result.json", b'{"metrics": {}}')
    for cell in many[100:110]:
        store.put(f"bucket/x/ledger/{folder_of(cell)}/error.txt", b"DataError: gone\n")
    found = in_s3.entries(many)
    assert [entry.status for entry in found.values()].count("done") == 100
    assert [entry.status for entry in found.values()].count("failed") == 10
    assert store.count("LIST") == 1
    assert store.count("HEAD", "result.json") == 100 + 10  # for the failed, who made them
    assert store.total < 300


def test_a_listing_goes_on_after_a_thousand_names(in_s3: Ledger, store: S3Server) -> None:
    for number in range(2500):
        store.put(f"bucket/x/ledger/ab/{number:05d}", b"1")
    assert len(list(in_s3.store.list_files(""))) == 2500
    assert len(in_s3.store.list_names("ab")) == 2500


@pytest.mark.parametrize("status", [403, pytest.param(503, marks=pytest.mark.slow)])
def test_a_store_that_refuses_is_one_line_naming_the_key(
    status: int, in_s3: Ledger, store: S3Server
) -> None:
    store.refuses = status
    with pytest.raises(UserError, match=r"^places\.ledger=s3://bucket/x/ledger: .*AWS_") as refused:
        in_s3.entry(CELLS[0])
    assert causes.can_succeed(causes.describe_cause(refused.value))
    with pytest.raises(UserError, match=r"^places\.ledger"):
        prove_writable(in_s3.store)


def test_the_query_of_a_url_stays_last() -> None:
    assert join("s3://bucket/x?region=a", "ledger") == "s3://bucket/x/ledger?region=a"
    assert join("s3://bucket/x/", "ledger") == "s3://bucket/x/ledger"
    assert join("/data", "ledger") == "/data/ledger"


def test_a_file_system_shows_no_half_written_file(tmp_path: Path) -> None:
    bucket = open_store(f"file://{tmp_path}/ledger")
    assert isinstance(bucket, Bucket)
    bucket.write("ab/one", b"1")
    (tmp_path / "ledger" / "ab" / ".two.0a.tmp").write_bytes(b"half")
    assert bucket.names("ab") == ["one"]
    assert [name for name, _ in bucket.files("")] == ["ab/one"]
