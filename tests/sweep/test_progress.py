"""Live progress: done, running, failed, and the time left of cells that are unequal."""

import io

import pytest
from rich.console import Console

from capsweep.sweep.job import Outcome
from capsweep.sweep.progress import SweepProgress, TimeLeft

FULL, QUARTER = 2400.0, 300.0
ROW = {"epoch": 0}


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


def make_progress(output: io.StringIO, metric: str = "test/error") -> SweepProgress:
    names = {"a": "cnn · seed 0", "b": "cnn · seed 1", "c": "cnn · seed 2"}
    left = TimeLeft(dict.fromkeys(names, (4, None)), total=3)
    return SweepProgress(Console(file=output, width=200), names, 3, left, metric)


def test_it_counts_what_happens(output: io.StringIO) -> None:
    with make_progress(output) as progress:
        progress.on_start("a")
        progress.on_epoch("a", ROW)
        progress.on_start("b")
        progress.on_end("a", Outcome({"metrics": {"test/error": 0.0125}, "tracking_fault": "x"}))
        progress.on_end("b", Outcome(cause="NonFiniteLossError: step 3"))
        progress.on_start("c")
        progress.on_start("c")  # again, after its worker was lost
    assert progress.describe().startswith("1 done, 1 running, 1 failed of 3, about ")
    assert "cnn · seed 0: test/error 1.25 %, W&B lost: x" in output.getvalue()
    assert "cnn · seed 1: FAILED: NonFiniteLossError: step 3" in output.getvalue()


def test_a_log_gets_a_line_a_minute(output: io.StringIO) -> None:
    with make_progress(output) as progress:
        progress.on_start("a")
        progress.on_epoch("a", ROW)
        assert output.getvalue() == ""
        progress._last_line -= 61.0
        progress.on_epoch("a", {"epoch": 1})
        progress.on_epoch("a", {"epoch": 2})
    assert output.getvalue().startswith("[0 done, 1 running, 0 failed of 3, about")
    assert output.getvalue().count("[0 done") == 1
    assert "\x1b" not in output.getvalue()


def test_a_loss_is_no_percentage(output: io.StringIO) -> None:
    progress = make_progress(output, "test/loss")
    progress.on_end("a", Outcome({"metrics": {"test/loss": 0.125}}))
    assert "cnn · seed 0: test/loss 0.125 (" in output.getvalue()


@pytest.fixture
def left() -> TimeLeft:
    """Four epochs each of a full network and of a quarter of it."""
    return TimeLeft({"full": (4, FULL), "quarter": (4, QUARTER)}, total=2)


def test_a_large_cell_counts_for_more_than_a_small_one(left: TimeLeft) -> None:
    assert left.describe(0.0) == "time left: unknown"
    left.add_epoch("full", 0)
    assert left.describe(660.0) == "about 38 min left", "a tenth longer than 1800 s and 300 s"
    left.add_epoch("full", 3)
    left.add_epoch("quarter", 0)
    assert left.describe(1275.0) == "about 4 min left"


@pytest.mark.parametrize("epochs", [range(3), [2]], ids=["reported again", "not reported"])
def test_the_epochs_of_an_earlier_run_need_no_time_again(left: TimeLeft, epochs: range) -> None:
    for epoch in epochs:
        left.add_epoch("full", epoch)
    assert left.left_work == pytest.approx(FULL / 4 + QUARTER)


def test_a_cell_that_starts_again_counts_once(left: TimeLeft) -> None:
    for epoch in (0, 1, 0, 1, 2):
        left.add_epoch("quarter", epoch)
    assert left.left_work == pytest.approx(FULL + QUARTER / 4)
    left.end_cell("quarter")
    left.end_cell("quarter")
    assert left.left_work == pytest.approx(FULL)


@pytest.mark.parametrize("known", [None, 800.0], ids=["no estimate", "that of another"])
def test_a_cell_without_an_estimate_takes_as_long_an_epoch_as_others(known: float | None) -> None:
    left = TimeLeft({"a": (8, known), "b": (4, None)}, total=2)
    left.add_epoch("a", 0)
    assert left.describe(10.0) == "about 110 s left"


def test_trials_that_are_not_drawn_yet_are_usual_ones() -> None:
    left = TimeLeft({}, total=3, usual_epochs=10)
    left.add_epoch("x", 0)
    left.end_cell("x")  # stopped by its search after one of ten epochs
    assert left.describe(5.0) == "about 100 s left"
