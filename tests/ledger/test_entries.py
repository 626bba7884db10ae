"""What the ledger knows of a cell, and of which code."""

import json

import pytest

from capsweep import cli
from capsweep.config import code_identity, compose
from capsweep.errors import UserError
from capsweep.ledger import causes, stored_files
from capsweep.ledger.ledger import Ledger, fails_again, folder_of
from capsweep.ledger.upkeep import find_garbage
from capsweep.storage.stores import join


def write_result(ledger: Ledger, signature: str, **others: object) -> None:
    """Another result of a finished cell."""
    whole = stored_files.with_digests({"metrics": {}, **others}, {})
    ledger.store.write(f"{folder_of(signature)}/result.json", json.dumps(whole).encode())


def test_evaluations_stand_beside_the_result_that_was_evaluated(ledger: Ledger, finish) -> None:
    cell = finish(ledger, "seed=1")
    signature, folder = cell.signature, folder_of(cell.signature)
    root = ledger.store.root
    assert ledger.list_files(signature, "evals") == []
    written = ledger.write_evaluation(signature, "b.json", b"{}")
    assert written == join(root, f"{folder}/evals/b.json")
    write_result(ledger, signature, attempt="ab12")
    inner = "" if ledger.disk else "ab12/"
    written = ledger.write_evaluation(signature, "a.json", b"[]")
    assert written == join(root, f"{folder}/{inner}evals/a.json")
    assert ledger.list_files(signature, "evals") == ["a.json", *(["b.json"] if ledger.disk else [])]
    assert ledger.read(signature, "evals/a.json") == b"[]"
    assert ledger.locate_files(signature) == join(root, f"{folder}/{inner}".rstrip("/"))
    ledger.store.remove(f"{folder_of(signature)}/result.json")
    with pytest.raises(UserError, match=f"cell {signature} has no result; run it"):
        ledger.write_evaluation(signature, "c.json", b"{}")


def test_a_row_is_the_last_of_its_epoch_and_a_torn_one_is_left_out(ledger: Ledger, finish) -> None:
    cell = finish(ledger, "seed=1")
    lines = b'{"epoch": 1, "a": 1}\n{"epoch": 0}\n{"epoch": 1, "a": 2}\n{"epoch": 2, "a'
    ledger.store.write(f"{folder_of(cell.signature)}/metrics.jsonl", lines)
    assert ledger.read_rows(cell.signature) == [{"epoch": 0}, {"epoch": 1, "a": 2}]
    assert ledger.read_rows("00" * 8) == []


def test_a_result_of_unknown_or_other_code_is_stale(ledger: Ledger, finish) -> None:
    cell = finish(ledger, "seed=1")
    assert ledger.read_cell_entries([cell])[cell.signature].status == "stale"
    code = {"numerics": code_identity.hash_numerics(cell.config)}
    write_result(ledger, cell.signature, code=code)
    assert ledger.read_cell_entries([cell])[cell.signature].status == "done"


def test_a_deterministic_failure_of_the_same_code_fails_again(ledger: Ledger) -> None:
    cell = compose.cell(["seed=1"])
    for cause, package, again in (
        ("NonFiniteLossError: step 3", code_identity.hash_package(), True),
        ("ValueError: a bug", code_identity.hash_package(), True),
        ("ValueError: a bug", "other code", False),
        ("OutOfMemoryError: 3 GiB", code_identity.hash_package(), False),
        ("DataError: file is gone", code_identity.hash_package(), False),
        (f"{causes.LOST_WORKER}killed", code_identity.hash_package(), False),
    ):
        folder = folder_of(cell.signature)
        ledger.store.write(f"{folder}/error.txt", f"{cause}\n\ntrace".encode())
        made = json.dumps({"code": {"package": package}}).encode()
        ledger.store.write(f"{folder}/provenance.json", made)
        assert fails_again(ledger.read_entry(cell.signature)) is again, cause


def test_garbage_is_what_nothing_depends_on(ledger: Ledger, finish) -> None:
    done, running = finish(ledger, "seed=1"), compose.cell(["seed=2"])
    for cell in (done, running):
        ledger.store.write(f"{folder_of(cell.signature)}/resume.ckpt", b"12345")
    found = list(find_garbage(ledger))
    # In an object store it may be that of a rerun, whose old result stands beside it.
    spent = [] if ledger.disk is None else [f"{folder_of(done.signature)}/resume.ckpt"]
    assert [item.name for item in found] == spent
    storage = ledger.store.root.replace("/ledger", "")
    for flags, left in ((["--dry-run"], found), ([], [])):
        assert cli.main(["ledger", "gc", f"STORAGE={storage}", *flags]) == 0
        assert list(find_garbage(ledger)) == left
    assert ledger.store.read(f"{folder_of(running.signature)}/resume.ckpt") == b"12345"
    assert ledger.read_result(done.signature) is not None
