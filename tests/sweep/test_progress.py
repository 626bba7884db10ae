"""Live progress: done, running, failed, and the time left."""

import io

import pytest
from clock import Clock
from rich.console import Console

from capsweep.ledger.ledger import Ledger
from capsweep.sweep import progress as progresses
from capsweep.sweep.progress import SweepProgress
from capsweep.training.run import Outcome

ROW = {"epoch": 0}


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


def make_progress(
    output: io.StringIO, is_terminal: bool = False, **lengths: float
) -> SweepProgress:
    names = {"a": "cnn · seed 0", "b": "cnn · seed 1", "c": "cnn · seed 2"}
    console = Console(file=output, width=200, force_terminal=is_terminal)
    return SweepProgress(console, names, 3, "test/error", lengths, Ledger("none"))


def test_it_counts_what_happens(output: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    with make_progress(output) as progress:
        progress.on_start("a", 4)
        progress.on_epoch("a", ROW)
        progress.on_start("b", 4)
        progress.on_end("a", Outcome({"metrics": {"test/error": 0.0125}, "tracking_fault": "x"}))
        progress.on_end("c", Outcome({"metrics": {"test/error": 0.5}, "tracking_fault": "x"}))
        progress.on_end("b", Outcome(cause="NonFiniteLossError: step 3"))
        progress.on_start("c", 4)
        progress.on_end("c", Outcome(paused="its worker was lost"))
        progress.on_start("c", 4)
    assert progress.describe().startswith("2 done, 1 running, 1 failed of 3, about ")
    assert "cnn · seed 0: test/error 1.25 % (" in output.getvalue()
    assert "\n\n" not in output.getvalue()
    assert capsys.readouterr().err == "W&B: x\n"  # once
    assert "cnn · seed 1: FAILED: NonFiniteLossError: step 3" in output.getvalue()


@pytest.mark.parametrize("outcome", [Outcome(elsewhere="run on far"), Outcome(paused="left")])
def test_a_cell_that_is_run_elsewhere_or_later_does_not_count_as_running(
    outcome: Outcome, output: io.StringIO
) -> None:
    with make_progress(output) as progress:
        progress.on_start("a", 4)
        progress.on_epoch("a", ROW)
        progress.on_end("a", outcome)
        progress.on_epoch("a", {"epoch": 1})  # the row arrives late
    assert progress.describe().startswith("0 done, 0 running, 0 failed of 3, about ")
    assert f"cnn · seed 0: {outcome.elsewhere or outcome.paused} (" in output.getvalue()


def test_a_log_gets_a_line_a_minute(output: io.StringIO) -> None:
    with make_progress(output) as progress:
        progress.on_start("a", 4)
        progress.on_epoch("a", ROW)
        assert output.getvalue() == ""
        progress._last_line -= 61.0
        progress.on_epoch("a", {"epoch": 1})
        progress.on_epoch("a", {"epoch": 2})
    assert output.getvalue().startswith("[0 done, 1 running, 0 failed of 3, about")
    assert output.getvalue().count("[0 done") == 1
    assert "\x1b" not in output.getvalue()


def test_a_running_cell_has_a_bar_on_a_terminal(output: io.StringIO) -> None:
    progress = make_progress(output, is_terminal=True)

    def look() -> str:
        output.truncate(output.seek(0))
        progress._bars.refresh()
        return output.getvalue()

    with progress:
        progress.on_start("a", 4)
        assert "starts" in look()
        progress.on_epoch("a", ROW)
        assert "epoch 1 of 4" in look()
        assert "0 done, 1 running, 0 failed of 3" in look()
        progress.on_end("a", Outcome(paused="its worker was lost"))
        progress.on_start("a", 4)
        assert "epoch" not in look()
        progress.on_end("a", Outcome(stopped=True))
        assert "seed 0" not in look()


def test_the_time_left_is_that_of_the_epochs_left(
    output: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progresses.time, "monotonic", clock := Clock())
    progress = make_progress(output)
    progress.on_start("a", 4)
    assert progress.describe().endswith("of 3, time left: unknown")
    progress.on_epoch("a", {"epoch": 2})  # an earlier command trained two
    clock.now += 10
    assert progress.describe().endswith("about 90 s left"), "nine of twelve"
    progress.on_end("a", Outcome(stopped=True))
    assert progress.describe().endswith("about 80 s left"), "it is not tried again"


def test_the_time_left_weighs_cells_by_their_epochs_and_estimates(
    output: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progresses.time, "monotonic", clock := Clock())
    progress = make_progress(output, a=1.0, b=50.0, c=150.0)
    progress.on_start("b", 50)
    for epoch in range(50):
        progress.on_epoch("b", {"epoch": epoch})
    progress.on_end("a", Outcome(cause="ValueError: no"))
    clock.now += 50
    assert progress.describe().endswith("about 2 min left"), "150 s of the third cell"
