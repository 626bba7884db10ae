"""How far a sweep is: the live bar of a terminal, and the line by which a job tells it.

The log of a job is what all who watch it have, in order, over a connection that is there anyway;
Ray serves nothing else of a running job that changes. So the driver writes its progress there, in
lines that watchers take out again. They are few, since the log is read from its beginning by each
who attaches, and by people too: one for each cell that starts or ends, and between these one for
each STEPS-th of the sweep, or a minute, as a log has anyway. In a day that is 0.3 MB at most.
"""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

STEPS = 2000  # of a sweep of a day, one in 43 s
SECONDS = 1.0  # between two steps of a short one: Ray sends a log once a second
LOG_SECONDS = 60.0  # between two lines for people
MARK, OVER = "@progress ", "@progress over"
TOLD = re.compile(re.escape(MARK) + r"(?P<completed>[0-9.]+)/(?P<total>[0-9]+) (?P<text>.+)")
OF_A_LOG = re.compile(r"\[[0-9]+ done, [0-9]+ running, [0-9]+ failed[^\[\]]*\]")


@dataclass(frozen=True)
class Standing:
    """How far a sweep is. text: for a person. completed: cells, running ones in part, of total."""

    text: str
    completed: float
    total: int

    def line(self) -> str:
        """As a job tells it; `read` reads it."""
        return f"{MARK}{self.completed:.3f}/{self.total} {self.text}"


def read(line: str) -> Standing | None:
    """What a line of a job's log tells of its progress; None for a line of another kind."""
    match = TOLD.fullmatch(line)
    return match and Standing(match["text"], float(match["completed"]), int(match["total"]))


def is_job() -> bool:
    """Whether this process drives a job of Ray, and is watched by its log."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


class Telling:
    """Which standings a job tells. write: takes a line."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self.write = write
        self._last: tuple[str, float] | None = None  # counts of cells, and how many are completed
        self._at = time.monotonic()

    def show(self, standing: Standing) -> None:
        """Tell it, if it is news."""
        counts, now = standing.text.partition(" of ")[0], time.monotonic()
        if self._last is not None and counts == self._last[0]:
            has_moved = abs(standing.completed - self._last[1]) >= standing.total / STEPS
            if now - self._at < (SECONDS if has_moved else LOG_SECONDS):
                return
        self._last, self._at = (counts, standing.completed), now
        self.write(standing.line())

    def over(self) -> None:
        """Tell that no more comes: what follows is no longer the sweep's progress."""
        self.write(OVER)


class Bar:
    """The live bar, below what the same console prints. Nothing where a console cannot redraw."""

    def __init__(self, console: Console) -> None:
        self.is_live = console.is_interactive
        self.console = console
        self._drawn: Progress | None = None

    def show(self, standing: Standing) -> None:
        """Draw it, or move it."""
        if not self.is_live:
            return
        if self._drawn is None:
            columns = TextColumn("{task.description}"), BarColumn()
            self._drawn = Progress(*columns, console=self.console, transient=True)
            self._drawn.add_task("")
            self._move(self._drawn, standing)
            self._drawn.start()
        self._move(self._drawn, standing)

    def hide(self) -> None:
        """Leave the terminal as it was."""
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None

    def _move(self, drawn: Progress, to: Standing) -> None:
        (task,) = drawn.task_ids
        drawn.update(task, description=to.text, completed=to.completed, total=to.total)
