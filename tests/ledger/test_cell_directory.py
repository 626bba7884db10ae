"""The folder in which a cell is made: what stands, and what a kill leaves."""

import json
from pathlib import Path

import pytest
from s3_server import S3Server

from capsweep.config import compose
from capsweep.ledger import cell_directory
from capsweep.ledger.cell_directory import RepeatedDirectory, StagedDirectory
from capsweep.ledger.ledger import Ledger, folder_of

FIRST = {"metrics": {"test/error": 0.5}}
SECOND = {"metrics": {"test/error": 0.25}}


def metrics_of(ledger: Ledger, signature: str) -> dict[str, float]:
    """Of the result that stands."""
    return (ledger.read_result(signature) or {})["metrics"]


def test_a_result_stands_until_the_cell_is_made_again(tmp_path: Path, finish) -> None:
    ledger = Ledger(tmp_path / "ledger")
    cell = finish(ledger, "seed=1", error=0.5)
    again = cell_directory.open_directory(ledger, cell.signature, tmp_path)
    assert isinstance(again, RepeatedDirectory)
    again.start(cell, {})
    assert metrics_of(ledger, cell.signature) == FIRST["metrics"]
    again.write_failure(ValueError("in the middle"))
    assert metrics_of(ledger, cell.signature) == FIRST["metrics"]
    again.start(cell, {})
    again.finish(SECOND)
    assert metrics_of(ledger, cell.signature) == SECOND["metrics"]
    (kept,) = (tmp_path / "ledger" / "superseded" / cell.signature).iterdir()
    assert json.loads((kept / "result.json").read_text())["metrics"] == FIRST["metrics"]


def test_a_kill_between_the_two_renames_loses_nothing(
    tmp_path: Path, finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    cell = finish(ledger, "seed=1", error=0.5)
    again = cell_directory.open_directory(ledger, cell.signature, tmp_path)
    again.start(cell, {})
    whole = Path.rename

    def killed_at_the_second(self: Path, target: Path) -> Path:
        if target.name == cell.signature:
            raise KeyboardInterrupt
        return whole(self, target)

    monkeypatch.setattr(Path, "rename", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        again.finish(SECOND)
    monkeypatch.undo()
    assert ledger.read_entry(cell.signature).status == "missing"
    cell_directory.recover_cell(ledger, cell.signature)
    assert metrics_of(ledger, cell.signature) == SECOND["metrics"]


def test_of_two_runs_in_an_object_store_the_first_result_stands_whole(
    tmp_path: Path, store: S3Server
) -> None:
    ledger, cell = Ledger(store.url("bucket/ledger")), compose.cell(["seed=1"])
    runs = []
    for number in (1, 2):
        scratch = tmp_path / f"scratch{number}"
        directory = cell_directory.open_directory(ledger, cell.signature, scratch)
        assert isinstance(directory, StagedDirectory)
        directory.start(cell, {"number": number})
        directory.write("weights.ckpt", lambda file, number=number: file.write(b"%d" % number))
        runs.append(directory)
    first, second = runs
    assert first.finish(FIRST)["metrics"] == FIRST["metrics"]
    stands = second.finish(SECOND)
    assert stands["metrics"] == FIRST["metrics"]
    assert ledger.read_result(cell.signature) == stands
    assert ledger.read(cell.signature, "weights.ckpt") == b"1"
    second.close()
    assert not list((tmp_path / "scratch2").iterdir())


def test_an_object_store_gives_the_checkpoint_to_the_next_run(
    tmp_path: Path, store: S3Server
) -> None:
    ledger, cell = Ledger(store.url("bucket/ledger")), compose.cell(["seed=1"])
    first = cell_directory.open_directory(ledger, cell.signature, tmp_path / "one")
    first.start(cell, {})
    first.resume_checkpoint.write_bytes(b"epoch 3")
    first.store_checkpoint()
    next_run = cell_directory.open_directory(ledger, cell.signature, tmp_path / "two")
    next_run.start(cell, {})
    assert next_run.resume_checkpoint.read_bytes() == b"epoch 3"
    next_run.update_provenance({"earlier": []})
    assert next_run.read_provenance() == ledger.read_provenance(cell.signature) == {"earlier": []}
    next_run.finish(SECOND, largest=7)
    assert ledger.store.read(f"{folder_of(cell.signature)}/resume.ckpt") is None
    assert ledger.read(cell.signature, "resume.ckpt") == b"epoch 3"
