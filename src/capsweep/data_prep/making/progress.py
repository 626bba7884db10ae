"""What a person sees while shards are made: how many, examples a second, time left."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from capsweep import terminal
from capsweep.data_prep.making.work import Outcome, Work

CHECK = 0.1  # of the time of making a shard is what its check takes
LINE_SECONDS = 10.0  # between the lines of a log


class ShardProgress:
    """A live bar where the terminal can redraw, else a line now and then."""

    def __init__(self, console: Console, works: list[Work], rate: float) -> None:
        self.console, self.total = console, len(works)
        self._costs = {work.part.name: _cost(work) for work in works}
        self._left = sum(self._costs.values())
        self._rate = rate  # examples a second, until some are made
        self.kept = self.made = self.failed = self.examples = 0
        self._begun = self._said = time.monotonic()
        self._spent = 0.0
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), console=console, transient=True
        )
        self._task = self._bar.add_task("", total=self._left)

    def __enter__(self) -> "ShardProgress":
        self._show()
        if self._is_live:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_live:  # else it would print itself now
            self._bar.stop()

    def ended(self, outcome: Outcome) -> None:
        """A shard is there, or is not."""
        cost = self._costs[outcome.part.name]
        self._left -= cost
        self._spent += cost
        self.kept += outcome.shard is not None and not outcome.made
        self.made += outcome.made
        self.failed += outcome.shard is None
        self.examples += outcome.part.examples if outcome.made else 0
        self._show()
        now = time.monotonic()
        if not self._is_live and now - self._said >= LINE_SECONDS:
            self._said = now
            terminal.line(self.console, self.status())

    def status(self) -> str:
        """One line."""
        counts = f"{self.made} made, {self.kept} kept, {self.failed} failed of {self.total} shards"
        seconds = time.monotonic() - self._begun
        speed = f"{self.examples / seconds:,.0f} examples/s, " if self.examples else ""
        return f"{counts}, {speed}{self._time_left(seconds)}"

    def _time_left(self, seconds: float) -> str:
        rate = self._spent / seconds if self._spent else self._rate
        left = self._left / rate if rate else 0.0
        return f"about {duration(left)} left"

    def _show(self) -> None:
        self._bar.update(self._task, description=self.status(), completed=self._spent)


def duration(seconds: float) -> str:
    """For people: 40 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _cost(work: Work) -> float:
    """In examples that are made."""
    return work.part.examples * (CHECK if work.known is not None else 1.0)
