"""Processes of one cell end together, however one ends, and another number goes on from there."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import processes
import pytest
from processes import listen_to_ctrl_c
from trained_cells import find_folder, read_rows, train

from capsweep.config import compose, places
from capsweep.config.cell import Cell
from capsweep.errors import (
    AccuracyNotReachedError,
    CodeChangedError,
    ConfigError,
    LeftEarlyError,
    NonFiniteLossError,
    RankFailedError,
    WorkerLostError,
)
from capsweep.ledger import causes
from capsweep.training import ddp, devices
from capsweep.training.run_hooks import RunHooks, StopFlag

pytestmark = pytest.mark.slow

EPOCHS = 3
DAY = 86400  # seconds
SECONDS = 20.0  # until processes must be gone; they are within one

# Runs a cell, says each epoch's number, and waits for a line after the one it was told to stop at.
HOLDER = """
import sys
from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.training.run import run
from capsweep.training.run_hooks import RunHooks
cell, last = Cell.from_json(sys.argv[1]), int(sys.argv[2])
def tell(row):
    print(row["epoch"], flush=True)
    if row["epoch"] == last:
        sys.stdin.readline()
run(cell, places.resolve(cell.config["places"]), RunHooks(on_epoch=tell))
"""


def cell_on(
    storage: Path, devices: int, *overrides: str, epochs: int = EPOCHS, interval: int = 0
) -> Cell:
    """A small cell of a few steps an epoch, with a checkpoint after each, or every so often."""
    small = f"epochs={epochs} batch_size=10 dataset.validation=1400 logger=csv"
    sizes = "model.conv.channels=8 model.primary.types=2 model.decoder.hidden=[16]"
    fixed = f"trainer.accelerator=cpu trainer.checkpoint_interval={interval}"
    asked = [*f"{small} {sizes} {fixed}".split(), f"trainer.devices={devices}"]
    return compose.cell([*asked, f"places.storage={storage}", *overrides])


def ranks_of(holder: int) -> list[int]:
    """Processes that train for another."""
    return processes.started_by(holder, "multiprocessing.spawn")


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_end_of_the_process_that_holds_the_cell_leaves_none_of_its_ranks(
    tmp_path: Path, sign: signal.Signals
) -> None:
    cell = cell_on(tmp_path, 2)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, cell.to_json(), "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=listen_to_ctrl_c,
    )
    try:
        assert holder.stdout is not None
        assert [holder.stdout.readline().strip() for _ in range(2)] == ["0", "1"]
        ranks = ranks_of(holder.pid)
        assert len(ranks) == 2
        holder.send_signal(sign)
        holder.wait(SECONDS)
    finally:
        holder.kill()
        holder.communicate()
    assert all(processes.has_ended(rank, SECONDS) for rank in ranks)
    assert (find_folder(cell) / "resume.ckpt").exists()
    assert not list(find_folder(cell).glob(".*.tmp"))


def test_a_process_that_is_killed_ends_the_others_and_one_device_goes_on_as_if_it_had_begun(
    tmp_path: Path,
) -> None:
    cell = cell_on(tmp_path / "broken", 2)
    ranks: list[int] = []

    def kill_rank(row: dict) -> None:
        if row["epoch"] == 1:
            ranks.extend(ranks_of(os.getpid()))
            os.kill(ranks[1], signal.SIGKILL)

    with pytest.raises(WorkerLostError, match="device 1 of 2 was ended by SIGKILL") as said:
        train(cell, RunHooks(on_epoch=kill_rank))
    assert causes.kind_of_cause(causes.describe_cause(said.value)) == causes.CauseKind.LOST
    assert len(ranks) == 2
    assert ranks_of(os.getpid()) == []
    assert not (find_folder(cell) / "error.txt").exists()  # it is tried again, and did not fail
    assert_goes_on(cell_on(tmp_path / "broken", 1), tmp_path / "unbroken")


def test_two_devices_leave_at_the_end_of_an_epoch_and_go_on_as_if_they_had_begun(
    tmp_path: Path,
) -> None:
    """One device is asked to leave by who hears its rows, two by SIGTERM, which Slurm sends to all
    processes; there is no checkpoint but theirs.
    """
    broken = tmp_path / "broken"
    before = signal.getsignal(signal.SIGTERM)
    ranks: list[int] = []

    def send_term(row: dict) -> None:
        ranks.extend(ranks_of(os.getpid()))
        for process in (*ranks, os.getpid()):
            os.kill(process, signal.SIGTERM)

    with pytest.raises(LeftEarlyError, match="after 1 epoch;"):
        train(cell_on(broken, 1, interval=DAY), RunHooks(on_epoch=lambda row: True))
    with pytest.raises(LeftEarlyError, match="after 2 epochs"):
        train(cell_on(broken, 2, interval=DAY), RunHooks(on_epoch=send_term, stop_flag=StopFlag()))
    assert len(ranks) == 2
    assert ranks_of(os.getpid()) == []
    assert signal.getsignal(signal.SIGTERM) is before
    cell = cell_on(broken, 2, interval=DAY)
    assert not (find_folder(cell) / "error.txt").exists()
    assert_goes_on(cell, tmp_path / "unbroken")


def assert_goes_on(cell: Cell, elsewhere: Path) -> None:
    """A cell that was cut short after two epochs ends as one that was not does on one device."""
    epochs: list[int] = []
    result = train(cell, RunHooks(on_epoch=lambda row: epochs.append(row["epoch"])))
    assert epochs in ([1, 2], [2])  # the checkpoint of its last epoch may have come too late
    whole = cell_on(elsewhere, 1)
    assert whole.signature == cell.signature
    expected = train(whole)
    assert result["devices"] == cell.config["trainer"]["devices"]
    assert result["metrics"] == pytest.approx(expected["metrics"], rel=2e-4)
    assert len(read_rows(cell)) == EPOCHS
    for row, expected_row in zip(read_rows(cell), read_rows(whole), strict=True):
        for name in ("epoch", "train/loss", "val/loss", "lr"):
            assert row[name] == pytest.approx(expected_row[name], rel=2e-4)


@pytest.mark.parametrize(
    ("override", "kind", "message"),
    [
        ("stop_accuracy=1.0", AccuracyNotReachedError, r"stop_accuracy=1.0 was not reached"),
        ("optim.optimizer.lr=1e18", NonFiniteLossError, r"not finite at step [1-3] \(epoch 0\)"),
    ],
)
def test_what_a_rank_raises_is_raised_as_what_it_is(
    tmp_path: Path, override: str, kind: type[Exception], message: str
) -> None:
    cell = cell_on(tmp_path, 2, override, epochs=1)
    with pytest.raises(kind, match=message):
        train(cell)
    assert "of 2:\nTraceback" in (find_folder(cell) / "error.txt").read_text()
    assert ranks_of(os.getpid()) == []
    assert not (find_folder(cell) / "result.json").exists()


def test_a_device_with_other_code_than_the_holder_of_the_cell_trains_nothing(
    tmp_path: Path,
) -> None:
    cell = cell_on(tmp_path, 2)
    here = places.resolve(cell.config["places"])
    shared = ddp.SharedCell(cell, "0" * 12, here, tmp_path, None, 2, tmp_path / "meeting")
    with pytest.raises(CodeChangedError, match="start the command again"):
        ddp.take_part(0, shared, lambda *_: True)


@pytest.mark.parametrize(("status", "kind"), [(-9, WorkerLostError), (1, RankFailedError)])
def test_a_device_that_ends_by_itself_is_no_lost_worker(status: int, kind: type[Exception]) -> None:
    process = SimpleNamespace(exitcode=status)
    rank: Any = SimpleNamespace(end=("lost",), number=0, process=process, stop=lambda _: None)
    assert type(ddp._find_cause([rank], RunHooks())) is kind


def test_more_devices_than_gpus_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = compose.cell([f"places.storage={tmp_path}", "trainer.devices=3", "resources.gpu=3"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"trainer\.devices: 3 devices .* sees 2 GPUs; set"):
        devices.count_devices(cell.config)
