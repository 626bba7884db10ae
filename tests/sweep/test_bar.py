"""The bar of a sweep, here and in the log of a job: lively, and never long."""

import io
from itertools import pairwise

import pytest
import screens
from rich.console import Console

from capsweep import terminal
from capsweep.sweep import bar
from capsweep.sweep.bar import Bar, Standing, Telling
from capsweep.sweep.job import Outcome
from capsweep.sweep.progress import SweepProgress
from capsweep.sweep.time_left import TimeLeft

HALF = Standing("1 done, 1 running, 0 failed of 3, about 20 s left", 1.5, 3)


def test_what_a_job_tells_is_read_again() -> None:
    assert bar.read(HALF.line()) == HALF
    for other in ("a line", "@progress is slow", f"[{HALF.text}]", f"cell: 1 % {HALF.line()}"):
        assert bar.read(other) is None


def test_starts_and_ends_of_cells_are_told_at_once() -> None:
    told: list[str] = []
    telling = Telling(told.append)
    for running in (0, 1, 2, 2):
        telling.show(Standing(f"0 done, {running} running, 0 failed of 3, about 9 s left", 0.0, 3))
    assert [line.split()[4] for line in told] == ["0", "1", "2"]


@pytest.mark.parametrize("hours", [24, 24 * 7])
def test_the_log_of_a_job_stays_short_and_its_bar_moves(
    hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    told: list[tuple[float, str]] = []
    telling = Telling(lambda line: told.append((clock, line)))
    steps = 200_000
    for step in range(steps):
        cells = 30 * step / steps
        clock = hours * 3600 * step / steps
        telling.show(Standing(f"{int(cells)} done, 1 running, 0 failed of 30, x left", cells, 30))
    assert sum(len(line) + 40 for _, line in told) < 300_000 * hours / 24
    assert max(b - a for (a, _), (b, _) in pairwise(told)) < 65
    assert len(told) <= bar.STEPS + 60 * hours + 2 * 30


def progress_of_one(said: io.StringIO) -> SweepProgress:
    left = TimeLeft.of({"a": 4}, {})
    return SweepProgress(Console(file=said, width=200), {"a": "cnn"}, left, "test/error")


def test_a_sweep_that_is_a_job_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    said = io.StringIO()
    with progress_of_one(said) as it:
        it.started("a")
        it.ended("a", Outcome({"metrics": {"test/error": 0.0125}}, None))
    told = [line for line in said.getvalue().splitlines() if not line.startswith("cnn: ")]
    standings = [bar.read(line) for line in told]
    assert [standing and standing.completed for standing in standings] == [0, 0, 1, None]
    assert told[-1] == bar.OVER


def test_a_log_of_no_job_has_no_such_lines() -> None:
    said = io.StringIO()
    with progress_of_one(said) as it:
        it.started("a")
    assert said.getvalue() == ""


def test_a_bar_stays_below_what_is_printed_and_leaves_nothing() -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=200, _environ={"TERM": "xterm"})
    live = Bar(console)
    for _ in range(2):  # a sweep with more seeds has several
        live.show(HALF)
        console.print("a line")
        assert [line[:20] for line in screens.lines(drawn.getvalue())][-2:] == [
            "a line",
            HALF.text[:20],
        ]
        live.hide()
    live.hide()
    assert screens.lines(drawn.getvalue()) == ["a line", "a line"]
    assert drawn.getvalue().endswith("\x1b[?25h") or "\x1b[?25h" in drawn.getvalue()[-20:]


def test_a_log_gets_no_bar_where_colours_are_asked_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert not Bar(terminal.console()).is_live


def test_what_is_said_aside_stands_above_the_bar() -> None:
    drawn = io.StringIO()
    live = Bar(Console(file=drawn, force_terminal=True, width=200, _environ={"TERM": "xterm"}))
    live.show(HALF)
    terminal.aside("left out: a node")
    said, bar_below = screens.lines(drawn.getvalue())
    live.hide()
    assert said == "left out: a node"
    assert bar_below.startswith(HALF.text)


def test_a_terminal_that_cannot_redraw_gets_no_bar() -> None:
    drawn = io.StringIO()
    environment = {"TERM": "dumb"}
    live = Bar(Console(file=drawn, force_terminal=True, width=200, _environ=environment))
    live.show(HALF)
    live.hide()
    assert (drawn.getvalue(), live.is_live) == ("", False)
