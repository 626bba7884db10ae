"""A count that a person watches: a live bar where the terminal can redraw, else a line at times."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from capsweep import terminal

FIRST = 2.0  # seconds before a bar appears
LINE = 15.0  # seconds between the lines of a log


class CountProgress:
    """How many of `total` are done, and how long the rest takes. unit: shards, bytes."""

    def __init__(self, console: Console, total: int, unit: str) -> None:
        self.console, self.total, self.unit, self.done = console, total, unit, 0
        self._begun = self._printed = time.monotonic()
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        columns = (TextColumn("{task.description}"), BarColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> "CountProgress":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar.live.is_started:  # else it would end with an empty line
            self._bar.stop()

    def advance(self, count: int) -> None:
        """So many more are done."""
        self.done += count
        now = time.monotonic()
        if self._is_live and now - self._begun > FIRST:
            if not self._bar.live.is_started:
                self._bar.start()
            self._bar.update(self._task, description=self.describe(), completed=self.done)
        elif not self._is_live and now - self._printed > LINE:
            self._printed = now
            terminal.print_line(self.console, self.describe())

    def describe(self) -> str:
        """One line."""
        rate = self.done / max(time.monotonic() - self._begun, 1e-9)
        left = (self.total - self.done) / max(rate, 1e-9)
        return f"{self.done:,} of {self.total:,} {self.unit}, about {left:,.0f} s left"
