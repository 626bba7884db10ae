"""Whatever W&B does, a cell ends as it would without it, and waits for it at most 5 s."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes
import pytest
from wandb_server import KEY, WandbServer

from capsweep.config.cell import Cell
from capsweep.ledger.ledger import Ledger
from capsweep.tracking import content
from capsweep.tracking import tracker as tracking
from capsweep.tracking.content import Labels
from capsweep.tracking.tracker import Tracker

pytestmark = pytest.mark.slow

Train = Callable[..., dict[str, Any]]
ONLINE, OFFLINE = "logger.mode=online", "logger.mode=offline"
MAX_SECONDS = 5.0  # as conf/logger has it


@pytest.fixture
def train_lost(train: Train, storage: Path, asked: list[tuple[str, float]]) -> Train:
    """Runs a cell of two epochs whose run W&B does not get; its result, which is whole."""

    def train_cell(*overrides: str, patience: float = 60, **hooks: Any) -> dict[str, Any]:
        asked.clear()
        result = train(*overrides, patience=patience, **hooks)
        cell = content.read_content(Ledger(storage / "ledger"), result["signature"])
        assert result["status"] == cell.status == "finished"
        assert [row["epoch"] for row in cell.rows if "train/loss" in row] == [0, 1]
        assert "test/error" in cell.summary
        assert result["tracking_fault"].endswith("capsweep wandb sync uploads this run")
        assert [do for do, seconds in asked if seconds < patience] == [do for do, _ in asked]
        assert len(asked) <= 1
        files = [path for path in storage.rglob("*") if path.is_file()]
        assert [path for path in files if KEY.encode() in path.read_bytes()] == []
        assert not list(storage.glob("wandb/synced/*"))
        return result

    return train_cell


@pytest.mark.parametrize(
    "mode", ["refuse", "hang", "later", "broken", "dead", "drip", "nobody listens"]
)
def test_a_server_that_does_not_work_is_waited_for_five_seconds_at_most(
    mode: Any, train_lost: Train, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode == "nobody listens":
        monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    elif mode == "later":  # in the middle of the run
        server.switch_later(4, "hang")
    else:
        server.mode = mode
    # A refusal is an answer, which a busy machine may give late.
    result = train_lost(ONLINE, patience=60 if mode == "refuse" else MAX_SECONDS)
    assert server.requests or mode == "nobody listens"
    assert mode != "refuse" or "401" in result["tracking_fault"]


def test_the_calls_of_training_wait_for_nothing_while_a_server_hangs(
    small_cell: Callable[..., Cell],
    storage: Path,
    server: WandbServer,
    asked: list[tuple[str, float]],
) -> None:
    server.mode = "hang"
    storage.mkdir()
    cell = small_cell("logger=wandb", ONLINE)
    tracker = Tracker(cell, storage, {"tracking": content.describe_tracking(cell, Labels())})
    for epoch in range(1000):
        tracker.log({"epoch": epoch, "step": epoch, "train/loss": 1.0})
    assert tracker.fault is None
    assert asked == []
    tracker.close(0, {"params": 1})
    ((do, seconds),) = asked
    assert do == "finish"
    assert seconds < MAX_SECONDS
    assert "in time" in str(tracker.fault)
    tracker.close(1)  # has no effect


def test_after_two_faults_cells_do_without_wandb(train_lost: Train, server: WandbServer) -> None:
    server.mode = "refuse"
    for seed in range(tracking.MOST_FAULTS):
        assert "401" in train_lost(ONLINE, f"seed={seed}")["tracking_fault"]
    server.mode, asked = "fine", len(server.requests)
    result = train_lost(ONLINE, "seed=3")
    assert result["tracking_fault"].startswith("W&B failed before")
    assert (result["tracking_seconds"], len(server.requests)) == (0, asked)


@pytest.mark.parametrize("fault", ["No module named 'wandb'", "No such file"])
def test_a_tracking_process_that_cannot_work_is_a_fault(
    fault: str, train_lost: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if fault == "No such file":
        monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    (tmp_path / "wandb.py").write_text(f"raise ModuleNotFoundError({fault!r})\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert fault in train_lost(OFFLINE)["tracking_fault"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_tracking_process_that_ends_or_stands_still_ends_nothing_but_tracking(
    train: Train, train_lost: Train, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    pids: list[int] = []

    def signal_tracker(row: dict[str, Any]) -> None:
        if row["epoch"] == 0:
            pids.extend(processes.trackers(os.getpid()))
            os.kill(pids[0], number)

    patience = 60 if number == signal.SIGKILL else MAX_SECONDS
    train_lost(OFFLINE, patience=patience, on_epoch=signal_tracker)
    assert capsys.readouterr().err.count("W&B: ") == 1
    assert processes.has_ended(pids[0], seconds=60)
    assert train(OFFLINE, "seed=1")["tracking_fault"] is None
