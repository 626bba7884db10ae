"""A cell that is tracked: what its W&B run has, online and offline."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
import tracking_processes
from offline_runs import epochs, runs
from wandb_server import WandbServer

from capsweep.config import compose, places
from capsweep.config.cell import Cell
from capsweep.ledger.ledger import Ledger
from capsweep.tracking import content
from capsweep.tracking import tracker as trackers
from capsweep.tracking.labels import Labels
from capsweep.tracking.tracker import Tracker, TrackerPool

pytestmark = pytest.mark.slow

Train = Callable[..., dict[str, Any]]
OFFLINE, ONLINE = "logger.mode=offline", "logger.mode=online"
PATIENT = "logger.max_seconds=60"
CONFUSION, WORST, SHEET = "confusion_table", "worst-examples", "pictures/worst-examples"


@pytest.fixture
def train(train: Train) -> Train:
    """Runs a small cell that has time for W&B on a busy machine, too."""

    def trained(*overrides: str, **wishes: Any) -> dict[str, Any]:
        chosen = any(text.startswith(("logger=csv", "logger.max")) for text in overrides)
        return train(*overrides, *(() if chosen else (PATIENT,)), **wishes)

    return trained


def keys_of(rows: list[dict[str, Any]]) -> set[str]:
    """Keys of rows, without what W&B adds within them."""
    return {key.partition(".")[0] for row in rows for key in row}


def test_an_offline_run_has_all_that_there_is(train: Train, storage: Path) -> None:
    result = train(OFFLINE)
    assert result["tracking_fault"] is None
    (run,) = runs(storage).values()
    assert (run["run_group"], run["job_type"]) == ("ablation", "capsnet")
    assert (run["name"], run["notes"]) == ("capsnet · T=3 · seed 0", "Does it?")
    assert run["tags"] == ["ablation", "digits"]
    assert run["config"]["routing.num_iters"] == 3
    assert run["config"]["dataset.source"] == "digits"
    assert (epochs(run), run["exit_code"]) == ([0, 1], 0)
    expected = result["metrics"] | {"params": result["parameters"], "gpu_hours": 0.0}
    assert {key: run["summary"][key] for key in expected} == expected
    assert {CONFUSION, WORST, SHEET} <= keys_of(run["rows"])


def test_an_online_run_has_all_that_there_is_and_is_marked(
    train: Train, storage: Path, server: WandbServer
) -> None:
    result = train(ONLINE)
    assert result["tracking_fault"] is None
    run = server.cloud.run(result["signature"])
    assert [row["epoch"] for row in run.rows if "train/loss" in row] == [0, 1]
    assert {CONFUSION, WORST, SHEET} <= keys_of(run.rows)
    assert run.summary["test/error"] == pytest.approx(result["metrics"]["test/error"])
    assert run.exit_code == 0
    found = content.read_content(Ledger(storage / "ledger"), result["signature"])
    assert content.is_synced(storage, found, server.url)
    assert str(result["tracking_url"]).endswith(f"/runs/{result['signature']}")


def test_pictures_are_left_out_where_nobody_wants_them(train: Train, storage: Path) -> None:
    train(OFFLINE, "logger.images=false", "epochs=1")
    (run,) = runs(storage).values()
    assert {CONFUSION, WORST} <= keys_of(run["rows"])
    assert SHEET not in keys_of(run["rows"])
    (table,) = (storage / "wandb").glob("offline-run-*/files/media/table/worst*.json")
    assert '"picture"' not in table.read_text()


def test_the_next_cell_has_the_same_process(train: Train, pool: TrackerPool) -> None:
    train(OFFLINE, "epochs=1", "seed=0")
    (first,) = tracking_processes.of(os.getpid())
    assert train(OFFLINE, "epochs=1", "seed=1")["tracking_fault"] is None
    assert tracking_processes.of(os.getpid()) == [first]
    pool.close()
    assert tracking_processes.of(os.getpid()) == []


def test_a_process_is_not_kept_for_ever(
    train: Train, pool: TrackerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "CELLS", 1)
    train(OFFLINE, "epochs=1", "seed=0")
    (first,) = tracking_processes.of(os.getpid())
    assert train(OFFLINE, "epochs=1", "seed=1")["tracking_fault"] is None
    (second,) = tracking_processes.of(os.getpid())
    assert second != first


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are; its path is short, as those of sockets must be."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_temporary_folders_of_wandb_go_with_the_process(
    train: Train, pool: TrackerPool, server: WandbServer, temporary: Path
) -> None:
    train(OFFLINE, "epochs=1")
    assert len(tracking_processes.temporary_folders(temporary)) == 1  # it is kept
    pool.close()
    server.mode = "refuse"
    refused = train(ONLINE, "epochs=1", "seed=1", "logger.max_seconds=5")
    assert refused["tracking_fault"] is not None  # it is killed
    assert list(temporary.glob("*wandb*")) == []


def test_a_process_of_wandbs_own_that_others_have_started_is_not_asked(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WANDB_SERVICE", f"3-1-unix-{tmp_path}/nobody")
    assert train(OFFLINE, "epochs=1")["tracking_fault"] is None


def test_a_cell_without_wandb_starts_no_process(train: Train) -> None:
    result = train("logger=csv", "epochs=1")
    assert result["tracking_fault"] is None
    assert tracking_processes.of(os.getpid()) == []


class CutError(Exception):
    """The run is cut short here."""


@pytest.mark.parametrize("mode", [OFFLINE, ONLINE])
def test_a_cell_that_was_cut_short_is_one_run_with_one_curve(
    mode: str, train: Train, storage: Path, server: WandbServer
) -> None:
    def cut(row: dict[str, Any]) -> None:
        if row["epoch"] == 1:
            raise CutError

    asked = (mode, "epochs=3", "trainer.checkpoint_interval=0")
    with pytest.raises(CutError):
        train(*asked, on_epoch=cut)
    result = train(*asked)
    assert result["tracking_fault"] is None
    if mode == ONLINE:
        run = server.cloud.run(result["signature"])
        assert run.sessions == 2
        assert [row["epoch"] for row in run.rows if "train/loss" in row] == [0, 1, 2]
        return
    (run,) = runs(storage).values()
    rows = [row for row in run["rows"] if "train/loss" in row]
    steps = {row["_step"]: row["epoch"] for row in rows}
    assert steps == {0: 0, 1: 1, 2: 2}  # what `wandb sync` goes by


KILLED = """
import os, signal, sys
import tracking_processes
from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.training.run import run
from capsweep.training.run_hooks import RunHooks

def end(row):
    if row["epoch"] == 2:
        print(*tracking_processes.of(os.getpid()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

cell = Cell.from_json(sys.argv[1])
run(cell, places.resolve(cell.config["places"]), RunHooks(on_epoch=end))
"""


def test_a_trainer_that_is_killed_leaves_all_its_rows_and_no_process(
    small_cell: Callable[..., Cell], storage: Path, temporary: Path
) -> None:
    cell = small_cell("logger=wandb", OFFLINE, PATIENT, "epochs=4")
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", KILLED, cell.to_json()]
    killed = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": path}
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (pid,) = map(int, killed.stdout.split())
    assert processes.has_ended(pid, seconds=60)
    assert tracking_processes.temporary_folders(temporary) == []
    (run,) = runs(storage).values()
    assert epochs(run) == [0, 1, 2]
    assert run["exit_code"] != 0


def test_pictures_made_later_come_to_the_same_run_online(
    train: Train, storage: Path, server: WandbServer
) -> None:
    signature = train(ONLINE, "epochs=1")["signature"]
    ledger = Ledger(storage / "ledger")
    png = ledger.read(signature, "evals/worst-examples.png")
    assert png is not None
    for name in ("segmentation", "perturbations"):  # one after the other, as people draw them
        ledger.write_evaluation(signature, f"{name}.png", png)
        trackers.add_pictures(
            ledger, signature, storage, {f"{name}.png": png, f"{name}.json": b"{}"}
        )
        assert f"pictures/{name}" in keys_of(server.cloud.run(signature).rows)
    rows = server.cloud.run(signature).rows
    assert [row["epoch"] for row in rows if "train/loss" in row] == [0]
    assert content.is_synced(storage, content.read_content(ledger, signature), server.url)


def test_a_cell_that_is_made_again_has_its_new_tables(train: Train, server: WandbServer) -> None:
    first = train(ONLINE, "epochs=1")
    again = train(ONLINE, "epochs=1", "rerun=always")
    assert (first["tracking_fault"], again["tracking_fault"]) == (None, None)
    run = server.cloud.run(first["signature"])
    assert [row["epoch"] for row in run.rows if "train/loss" in row] == [0]
    assert sum(WORST in row for row in run.rows) == 2


@pytest.mark.parametrize("asked", ["logger=csv", "logger.images=false"])
def test_pictures_of_a_cell_that_wants_none_go_nowhere(
    asked: str, train: Train, storage: Path
) -> None:
    mode = () if asked == "logger=csv" else (OFFLINE,)
    signature = train(asked, *mode, "epochs=1")["signature"]
    before = runs(storage)
    trackers.add_pictures(Ledger(storage / "ledger"), signature, storage, {"a.png": b"no picture"})
    assert runs(storage) == before


def test_the_digits_of_a_composed_data_set_are_a_column(tmp_path: Path) -> None:
    settings = [
        content.spec_of_cell(
            compose.cell(["dataset=multimnist", f"dataset.source={source}"]), tmp_path, Labels()
        ).config
        for source in ("mnist", "digits")
    ]
    assert [one["dataset.source"] for one in settings] == ["mnist", "digits"]
    assert [one["dataset.name"] for one in settings] == ["multimnist", "multidigits"]


def test_a_tracker_may_be_closed_twice(small_cell: Callable[..., Cell], pool: TrackerPool) -> None:
    cell = small_cell("logger=wandb", OFFLINE, PATIENT)
    here = places.resolve(cell.config["places"])
    here.storage.mkdir()
    tracker = Tracker(content.spec_of_cell(cell, here.storage, Labels()), pool)
    tracker.close(0)
    tracker.close(1)
    tracker.log({"epoch": 0})
    assert tracker.fault is None
    assert runs(here.storage)[cell.signature]["exit_code"] == 0
