"""Live progress: done, running, failed, and the time left of cells that are unequal."""

import io

import pytest
from rich.console import Console

from capsweep.sweep.job import Outcome
from capsweep.sweep.progress import ExpectedWork, SweepProgress, TimeLeft

FULL, QUARTER = 2400.0, 300.0


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


def make_progress(output: io.StringIO, metric: str = "test/error") -> SweepProgress:
    names = {"a": "cnn · seed 0", "b": "cnn · seed 1", "c": "cnn · seed 2"}
    left = TimeLeft.from_estimates(dict.fromkeys(names, 4), {})
    return SweepProgress(Console(file=output, width=200), names, left, metric)


def row(epoch: int, seconds: float) -> dict[str, float]:
    return {"epoch": epoch, "seconds": seconds}


def test_it_counts_what_happens(output: io.StringIO) -> None:
    with make_progress(output) as progress:
        progress.on_start("a")
        progress.on_epoch("a", row(0, 10.0))
        progress.on_start("b")
        progress.on_end("a", Outcome({"metrics": {"test/error": 0.0125}, "tracking_fault": "x"}))
        progress.on_end("b", Outcome(cause="NonFiniteLossError: step 3"))
        progress.on_start("c")
        progress.on_start("c")  # again, after its worker was lost
    assert progress.describe() == "1 done, 1 running, 1 failed of 3, about 40 s left"
    assert "cnn · seed 0: test/error 1.25 %, W&B lost: x" in output.getvalue()
    assert "cnn · seed 1: FAILED: NonFiniteLossError: step 3" in output.getvalue()


def test_a_log_gets_a_line_a_minute(output: io.StringIO) -> None:
    with make_progress(output) as progress:
        progress.on_start("a")
        progress.on_epoch("a", row(0, 5.0))
        assert output.getvalue() == ""
        progress._last_line -= 61.0
        progress.on_epoch("a", row(1, 5.0))
        progress.on_epoch("a", row(2, 5.0))
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
    return TimeLeft.from_estimates({"full": 4, "quarter": 4}, {"full": FULL, "quarter": QUARTER})


def test_a_large_cell_counts_for_more_than_a_small_one(left: TimeLeft) -> None:
    left.start_cell("full")
    left.add_epoch("full", row(0, 660.0))  # a tenth longer than expected
    assert left.estimate_seconds() == pytest.approx(1.1 * (FULL * 3 / 4 + QUARTER))


def test_cells_side_by_side_end_with_the_longest(left: TimeLeft) -> None:
    left.start_cell("full")
    left.start_cell("quarter")
    left.add_epoch("quarter", row(0, 75.0))
    assert left.estimate_seconds() == pytest.approx(FULL)


@pytest.mark.parametrize("epochs", [range(3), [2]], ids=["reported again", "not reported"])
def test_the_epochs_of_an_earlier_run_need_no_time_again(left: TimeLeft, epochs: range) -> None:
    left.start_cell("full")
    for epoch in epochs:
        left.add_epoch("full", row(epoch, 600.0))
    assert left.estimate_seconds() == pytest.approx(FULL / 4 + QUARTER)


def test_a_cell_that_starts_again_counts_once(left: TimeLeft) -> None:
    for is_over in (False, True):
        left.start_cell("quarter")
        left.add_epoch("quarter", row(0, 75.0))
        left.end_cell("quarter", is_over)
        left.add_epoch("quarter", row(3, 75.0))  # the last report of a lost worker
    left.start_cell("quarter")
    left.add_epoch("quarter", row(0, 75.0))
    assert left.estimate_seconds() == pytest.approx(FULL + QUARTER * 3 / 4)
    assert left.completed == 0.25


def test_a_cell_that_failed_tells_nothing_of_the_others(left: TimeLeft) -> None:
    left.start_cell("quarter")
    left.end_cell("quarter")
    assert left.estimate_seconds() is None
    left.start_cell("full")
    left.add_epoch("full", row(0, 600.0))
    assert left.estimate_seconds() == pytest.approx(FULL * 3 / 4)


@pytest.mark.parametrize("known", [None, 800.0], ids=["no estimate", "that of another"])
def test_a_cell_without_an_estimate_takes_as_long_an_epoch_as_others(known: float | None) -> None:
    left = TimeLeft.from_estimates({"a": 8, "b": 4}, {"a": known, "b": None})
    left.start_cell("a")
    left.add_epoch("a", row(0, 50.0))
    assert left.estimate_seconds() == pytest.approx(50 * (7 + 4))


def test_trials_that_are_not_drawn_yet_are_usual_ones() -> None:
    left = TimeLeft({}, 3, ExpectedWork(1.0, 10))
    assert left.describe() == "time left: unknown"
    left.start_cell("x")
    left.add_epoch("x", row(0, 20.0))
    left.end_cell("x")  # stopped by its search after one of ten epochs
    assert left.describe() == "about 7 min left"
