"""Disk and object store behave alike to who reads and writes."""

from pathlib import Path

import pytest

from capsweep.errors import ConfigError, UserError
from capsweep.ledger.ledger import Ledger
from capsweep.storage.stores import open_store, prove_writable


def test_files_come_back_as_they_were_written(ledger: Ledger, tmp_path: Path) -> None:
    store = ledger.store
    store.write("ab/cd/one", b"1")
    (tmp_path / "local").write_bytes(b"22")
    store.copy_from("ab/cd/two", tmp_path / "local")
    assert store.read("ab/cd/one") == b"1"
    assert store.fetch("ab/cd/two", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"22"
    assert store.list_names("ab/cd") == ["one", "two"]
    assert list(store.list_files("ab")) == [("ab/cd/one", 1), ("ab/cd/two", 2)]


def test_what_is_absent_is_nothing_and_no_error(ledger: Ledger, tmp_path: Path) -> None:
    store = ledger.store
    assert store.read("no/such") is None
    assert not store.fetch("no/such", tmp_path / "back")
    assert store.list_names("nowhere") == []
    store.remove("no/such")


def test_files_and_folders_are_removed(ledger: Ledger) -> None:
    store = ledger.store
    for name in ("a/one", "a/two", "b/three"):
        store.write(name, b"")
    store.remove("a")
    store.remove("b/three")
    assert store.list_names("a") == []
    assert store.read("b/three") is None


def test_a_url_that_means_nothing_names_its_key() -> None:
    with pytest.raises(ConfigError, match=r"places\.ledger=nonsense://bucket"):
        open_store("nonsense://bucket/ledger")


def test_a_ledger_that_cannot_be_written_names_its_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"places\.ledger=.*/file is no folder; name another"):
        open_store(tmp_path / "file" / "ledger")
    with pytest.raises(UserError, match=r"places\.ledger: .* cannot be written"):
        prove_writable(open_store("/proc/ledger"))
