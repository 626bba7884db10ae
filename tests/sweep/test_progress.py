"""Live progress: done, running, failed, time left."""

import io

import pytest
from rich.console import Console

from capsweep.sweep.job import Outcome
from capsweep.sweep.progress import SweepProgress
from capsweep.sweep.time_left import TimeLeft


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def progress(said: io.StringIO) -> SweepProgress:
    console = Console(file=said, width=200)
    names = {"a": "cnn · seed 0", "b": "cnn · seed 1", "c": "cnn · seed 2"}
    return SweepProgress(console, names, TimeLeft.of(dict.fromkeys(names, 4), {}), "test/error")


def test_it_counts_what_happens(progress: SweepProgress, said: io.StringIO) -> None:
    with progress:
        progress.started("a")
        progress.started("b")
        progress.ended(
            "a", Outcome({"metrics": {"test/error": 0.0125}, "seconds": {"total": 40.0}}, None)
        )
        progress.ended("b", Outcome(None, "NonFiniteLossError: step 3"))
        progress.started("c")
    assert progress.status().startswith("1 done, 1 running, 1 failed of 3, about 40 s")
    assert "cnn · seed 0: test/error 1.25 %" in said.getvalue()
    assert "cnn · seed 1: FAILED: NonFiniteLossError: step 3" in said.getvalue()


def test_a_cell_taken_again_after_a_lost_worker_is_one_running_cell(
    progress: SweepProgress,
) -> None:
    progress.started("a")
    progress.epoch("a", {"epoch": 1, "seconds": 5.0})
    progress.started("a")
    assert progress.status().startswith("0 done, 1 running, 0 failed")


def test_a_log_gets_a_line_a_minute(progress: SweepProgress, said: io.StringIO) -> None:
    with progress:
        progress.started("a")
        progress.epoch("a", {"epoch": 0, "seconds": 5.0})
        assert said.getvalue() == ""
        progress._said_at -= 61.0
        progress.epoch("a", {"epoch": 1, "seconds": 5.0})
        progress.epoch("a", {"epoch": 2, "seconds": 5.0})
    assert said.getvalue().startswith("[0 done, 1 running, 0 failed of 3, about")
    assert said.getvalue().count("[0 done") == 1
    assert "\x1b" not in said.getvalue()


def test_a_lost_wandb_run_is_said(progress: SweepProgress, said: io.StringIO) -> None:
    result = {"metrics": {"test/error": 0.5}, "tracking_fault": "CommError: refused"}
    progress.ended("a", Outcome(result, None))
    assert "W&B lost: CommError: refused" in said.getvalue()


def test_a_loss_is_no_percentage(said: io.StringIO) -> None:
    console = Console(file=said, width=200)
    progress = SweepProgress(console, {"a": "cnn"}, TimeLeft.of({"a": 4}, {}), "test/loss")
    progress.ended("a", Outcome({"metrics": {"test/loss": 0.125}}, None))
    assert "cnn: test/loss 0.125 (" in said.getvalue()
