"""What is shown of a job: in a log as it was printed, at a terminal with the bar of its sweep."""

import io
from contextlib import suppress
from itertools import pairwise

import pytest
import screens
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from capsweep import terminal
from capsweep.cluster_doors.shown import Shown
from capsweep.sweep import bar
from capsweep.sweep.bar import Standing

TEXT = "0 done, 1 running, 0 failed of 2, about 90 s left"
PRINTED = ["plan", "", f"a: 1.25 % (3 s)  [{TEXT}]", f"[{TEXT}]", "  @progress", "table"]
LOG = "\n".join([*PRINTED[:2], Standing(TEXT, 0.5, 2).line(), *PRINTED[2:5], bar.OVER, PRINTED[5]])


def _in_pieces(cuts: set[int], end: str) -> list[str]:
    places = [0, *sorted(cuts), len(LOG)]
    return [LOG[a:b] for a, b in pairwise(places)] + [end]


@given(cuts=st.sets(st.integers(0, len(LOG))), end=st.sampled_from(["", "\n"]))
def test_a_log_is_as_it_was_printed_in_whatever_pieces_it_comes(cuts: set[int], end: str) -> None:
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.stdout", out)
        with Shown(Console(file=out)) as shown:
            for piece in _in_pieces(cuts, end):
                shown.write(piece)
    assert out.getvalue() == "\n".join(PRINTED) + end


def test_a_terminal_has_the_bar_below_the_lines_and_what_the_watcher_says() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200, _environ={"TERM": "xterm"})
    with Shown(console) as shown:
        shown.write(LOG[: LOG.index("  @progress")])
        terminal.line(console, "the connection is lost")
        *above, last = screens.lines(out.getvalue())
        assert above == ["plan", PRINTED[2], "the connection is lost"]
        assert last.startswith(f"{TEXT} ━")
        shown.write(LOG[LOG.index("  @progress") :])
    assert screens.lines(out.getvalue()) == [*above, "  @progress", "table"]


def test_a_bar_is_taken_away_when_the_watcher_leaves() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200, _environ={"TERM": "xterm"})
    with suppress(KeyboardInterrupt), Shown(console) as shown:
        shown.write(LOG[: LOG.index("  @progress")])
        raise KeyboardInterrupt
    assert screens.lines(out.getvalue()) == ["plan", PRINTED[2]]
    assert out.getvalue().rfind("\x1b[?25h") > out.getvalue().rfind("\x1b[?25l")
