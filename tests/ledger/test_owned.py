"""What killed processes leave beside the ledger is found; what a living one uses is left alone."""

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from capsweep import cli
from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.errors import LeftEarlyError, WorkerLostError
from capsweep.ledger import lease
from capsweep.ledger.ledger import Ledger
from capsweep.training.run import run
from capsweep.training.run_hooks import RunHooks


def made(parent: Path, name: str, is_signed: bool = True, is_dead: bool = False) -> Path:
    """A folder with something in it, of this process or of one that is gone."""
    folder = parent / name
    folder.mkdir(parents=True)
    (folder / "content").write_bytes(b"12345")
    if is_signed:
        lease.sign_folder(folder)
    if is_dead:
        gone = replace(lease.current_owner(), started="0")
        (folder / lease.SIGNATURE_FILE).write_text(json.dumps(asdict(gone)))
        untouched = time.time() - 2 * lease.SETTLED_SECONDS
        for path in (*folder.iterdir(), folder):
            os.utime(path, (untouched, untouched))
    return folder


def test_folders_of_processes_that_are_gone_are_found(tmp_path: Path) -> None:
    made(tmp_path, "sweep-living")
    dead = made(tmp_path, "sweep-dead", is_dead=True)
    made(tmp_path, "sweep-young", is_signed=False)
    made(tmp_path, "other-dead", is_dead=True)
    old = made(tmp_path, "sweep-old", is_signed=False)
    touched = made(tmp_path, "sweep-touched", is_signed=False)
    for path in (old, old / "content", touched):
        os.utime(path, (1e9, 1e9))
    (tmp_path / "sweep-linked").symlink_to(dead)
    (tmp_path / "sweep-file").touch()
    assert [folder for folder, _ in lease.find_abandoned(tmp_path, "sweep-*")] == [dead, old]


def test_a_folder_that_was_touched_lately_stays(tmp_path: Path) -> None:
    folder = made(tmp_path, "capsweep-wandb-x", is_dead=True)
    (folder / "content").touch()  # by a child that outlived its parent
    assert list(lease.find_abandoned(tmp_path, "capsweep-wandb-*")) == []


def test_gc_removes_what_was_left_in_all_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    storage, temporary = tmp_path / "storage", tmp_path / "temporary"
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    dead, living = (
        [
            made(storage / "scratch", f"0123456789abcdef-{name}", is_dead=is_dead),
            made(storage / "ray", f"sweep-{name}", is_dead=is_dead),
            made(temporary, f"capsweep-wandb-{name}", is_dead=is_dead),
            made(temporary, f"capsweep-ranks-{name}", is_dead=is_dead),
        ]
        for name, is_dead in (("a", True), ("b", False))
    )
    (storage / "ledger").mkdir()
    assert cli.main(["ledger", "gc", "--dry-run", "--storage", str(storage)]) == 0
    assert all(folder.is_dir() for folder in (*dead, *living))
    said = capsys.readouterr().out
    assert all(f"{folder}: of process {os.getpid()} on " in said for folder in dead)
    assert cli.main(["ledger", "gc", "--storage", str(storage)]) == 0
    assert "4 files or folders" in capsys.readouterr().out
    assert not any(folder.exists() for folder in dead)
    assert all(folder.is_dir() for folder in living)


@pytest.mark.parametrize(
    "end", [LeftEarlyError, WorkerLostError, KeyboardInterrupt, SystemExit, ValueError]
)
def test_a_run_that_ends_early_leaves_its_checkpoint_in_the_object_store_alone(
    end: type[BaseException], small_cell: Callable[..., Cell], storage: Path
) -> None:
    bucket = storage / "bucket"
    bucket.mkdir(parents=True)
    cell = small_cell(
        "model=cnn_small", f"places.ledger=file://{bucket}", "trainer.checkpoint_interval=0"
    )
    here, told = places.resolve(cell.config["places"]), []

    def ends(row: dict) -> None:
        if row["epoch"] == 1:
            raise end("it ends")

    with pytest.raises(BaseException, match=r"it ends|^$"):
        run(cell, here, RunHooks(on_epoch=ends))
    assert list((storage / "scratch").iterdir()) == []
    result = run(cell, here, RunHooks(on_epoch=lambda row: told.append(row["epoch"])))
    assert told == [1], "it went on from its checkpoint"
    assert result == {
        k: v for k, v in Ledger(here.ledger).read_result(cell.signature).items() if k != "attempt"
    }
    assert list((storage / "scratch").iterdir()) == []
