"""What a person sees while many bytes are read: how many, GB a second, time left."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from capsweep import terminal

FIRST = 2.0  # seconds, before which nothing is said
LINE = 30.0  # seconds between the lines of a log


class BytesProgress:
    """A live bar where the terminal can redraw, else a line now and then."""

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total, self.done = console, total, 0
        self._begun = self._said = time.monotonic()
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), console=console, transient=True
        )
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> "BytesProgress":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar.live.is_started:  # else it would end with an empty line
            self._bar.stop()

    def advance(self, count: int) -> None:
        """So many more are read."""
        self.done += count
        now = time.monotonic()
        if self._is_live and now - self._begun > FIRST:
            if not self._bar.live.is_started:
                self._bar.start()
            self._bar.update(self._task, description=self.status(), completed=self.done)
        elif not self._is_live and now - self._said > LINE:
            self._said = now
            terminal.line(self.console, self.status())

    def status(self) -> str:
        """One line."""
        rate = self.done / max(time.monotonic() - self._begun, 1e-9)
        left = (self.total - self.done) / max(rate, 1.0)
        done = f"{self.done / 1e9:,.1f} of {self.total / 1e9:,.1f} GB"
        return f"{done}, {rate / 1e9:.2f} GB/s, about {left:,.0f} s left"
