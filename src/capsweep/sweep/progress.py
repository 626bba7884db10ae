"""What a person sees while a sweep runs: done, running, failed, time left."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from capsweep.statistics import metric_format
from capsweep.sweep.job import Outcome

LOG_SECONDS = 60.0  # between two lines of a log


@dataclass(frozen=True)
class ExpectedWork:
    """Seconds of a cell's epoch, or any measure that is the same for all cells; its epochs."""

    of_epoch: float
    epochs: int


class TimeLeft:
    """Cells take as much longer than expected as their epochs did so far, on as many slots as were
    seen to work at once. It is only shown: bounds go by the estimates themselves.

    cells: those that are known; the others, of `total`, are `usual` ones.
    """

    def __init__(
        self, cells: Mapping[str, ExpectedWork], total: int, usual: ExpectedWork | None = None
    ) -> None:
        self.cells, self.total, self.usual = cells, total, usual or ExpectedWork(1.0, 1)
        self.running: set[str] = set()
        self._epochs: dict[str, int] = {}  # that are done, of each cell that was started
        self._slots = 1
        self._seconds = self._work = 0.0  # of the epochs of this command
        known = sum(cell.of_epoch * cell.epochs for cell in cells.values())
        rest = (total - len(cells)) * self.usual.of_epoch * self.usual.epochs
        self._work_left = known + rest

    @classmethod
    def from_estimates(
        cls, epochs: Mapping[str, int], seconds: Mapping[str, float | None]
    ) -> "TimeLeft":
        """Of cells whose epochs are known, and mostly their seconds: an epoch without an estimate
        takes as long as the others.
        """
        known = {s: of / epochs[s] for s, of in seconds.items() if of is not None}
        usual = fmean(known.values()) if known else 1.0
        cells = {s: ExpectedWork(known.get(s, usual), count) for s, count in epochs.items()}
        return cls(cells, len(cells))

    @property
    def completed(self) -> float:
        """Cells that are done, running ones in part."""
        return sum(count / self._expect(s).epochs for s, count in self._epochs.items())

    def start_cell(self, signature: str) -> None:
        """A worker has the cell; perhaps again, after another one was lost."""
        self._advance(signature, 0)
        self.running.add(signature)
        self._slots = max(self._slots, len(self.running))

    def add_epoch(self, signature: str, row: Mapping[str, Any]) -> None:
        """A running cell finished an epoch; the last report of a lost worker comes too late."""
        if signature in self.running:
            self._advance(signature, row["epoch"] + 1)
            self._work += self._expect(signature).of_epoch
            self._seconds += row["seconds"]

    def end_cell(self, signature: str, is_over: bool = True) -> None:
        """A cell runs no more. is_over: it will not be tried again by this command."""
        self.running.discard(signature)
        if is_over:
            self._advance(signature, self._expect(signature).epochs)

    def estimate_seconds(self) -> float | None:
        """Until all have ended; None before an epoch is known."""
        if not self._seconds:
            return None
        longest = max(map(self._work_left_of, self.running), default=0.0)
        return self._seconds / self._work * max(longest, self._work_left / self._slots)

    def describe(self) -> str:
        """`about 90 s left`, `about 12 min left`."""
        seconds = self.estimate_seconds()
        if seconds is None:
            return "time left: unknown"
        minutes = f"{seconds / 60:.0f} min"
        return f"about {seconds:.0f} s left" if seconds < 120 else f"about {minutes} left"

    def _advance(self, signature: str, epochs: int) -> None:
        before = self._epochs.get(signature, 0)
        self._work_left -= (epochs - before) * self._expect(signature).of_epoch
        self._epochs[signature] = epochs

    def _work_left_of(self, signature: str) -> float:
        expected = self._expect(signature)
        return (expected.epochs - self._epochs[signature]) * expected.of_epoch

    def _expect(self, signature: str) -> ExpectedWork:
        return self.cells.get(signature, self.usual)


class SweepProgress:
    """A line per finished cell; on a terminal that can redraw also a live bar, elsewhere a line of
    the same at most every minute.
    """

    def __init__(
        self, console: Console, names: dict[str, str], left: TimeLeft, metric: str
    ) -> None:
        self.console, self.names, self.left, self.metric = console, names, left, metric
        self.done = self.failed = self.stopped = 0
        self.results: list[dict[str, Any]] = []
        self._started_at: dict[str, float] = {}
        self._last_line = self._begun = time.monotonic()
        columns = TextColumn("{task.description}"), BarColumn()
        bar = Progress(*columns, console=console, transient=True)
        self._bar = bar if console.is_interactive else None

    def __enter__(self) -> "SweepProgress":
        if self._bar is not None:
            self._bar.add_task("", total=self.left.total)
            self._bar.start()
        self._update()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_start(self, signature: str) -> None:
        """A worker has the cell (again, after its first worker was lost)."""
        self.left.start_cell(signature)
        self._started_at[signature] = time.monotonic()
        self._update()

    def on_epoch(self, signature: str, row: dict[str, Any]) -> None:
        """A cell finished an epoch."""
        self.left.add_epoch(signature, row)
        self._update()

    def on_end(self, signature: str, outcome: Outcome) -> None:
        """A cell ended, well or not."""
        self.left.end_cell(signature, is_over=not outcome.left)
        self.done += outcome.result is not None
        self.stopped += outcome.stopped
        self.failed += outcome.cause is not None
        if outcome.result is not None:
            self.results.append(outcome.result)
            if (anew := outcome.result.get("begun_anew")) is not None:
                self.on_message(signature, anew)
        seconds = time.monotonic() - self._started_at.get(signature, self._begun)
        text = self._describe_outcome(outcome)
        self._print(f"{self.names[signature]}: {text} ({seconds:.0f} s)  [{self.describe()}]")
        self._update()

    def on_message(self, signature: str, text: str) -> None:
        """Something a person should know: a retry, another driver."""
        self._print(f"{self.names[signature]}: {text}")

    def describe(self) -> str:
        """One line: done, running, failed, time left."""
        counts = f"{self.done} done, {len(self.left.running)} running, {self.failed} failed"
        counts += f", {self.stopped} ended early" if self.stopped else ""
        return f"{counts} of {self.left.total}, {self.left.describe()}"

    def _describe_outcome(self, outcome: Outcome) -> str:
        if outcome.stopped:
            return "ended early"
        if outcome.left:
            return outcome.left
        if outcome.result is None:
            return f"FAILED: {outcome.cause}"
        value, text = outcome.result["metrics"].get(self.metric), "finished"
        if value is not None:
            measure = metric_format.measure_of(self.metric)
            text = f"{self.metric} {measure.format_number(value)}{measure.unit}"
        fault = outcome.result.get("tracking_fault")
        return f"{text}, W&B lost: {fault}" if fault else text

    def _print(self, text: str) -> None:
        self._last_line = time.monotonic()
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _update(self) -> None:
        """Redraw the bar; where there is none, print a line a minute."""
        if self._bar is not None and self._bar.task_ids:
            (task,) = self._bar.task_ids
            self._bar.update(task, description=self.describe(), completed=self.left.completed)
        elif self._bar is None and time.monotonic() - self._last_line > LOG_SECONDS:
            self._print(f"[{self.describe()}]")
