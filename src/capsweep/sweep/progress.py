"""What a person sees while a sweep runs: done, running, failed, time left."""

import time
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from capsweep.statistics import metric_format
from capsweep.sweep.job import Outcome

LOG_SECONDS = 60.0  # between two lines of a log


class TimeLeft:
    """The work that is left, at the pace of this command so far. It is only shown: bounds go by the
    estimates themselves.

    cells: the epochs of each known cell and its estimated seconds, None where there is no estimate:
    its epochs take as long as the others. usual_epochs: of the other cells, of `total`.
    """

    def __init__(
        self, cells: Mapping[str, tuple[int, float | None]], total: int, usual_epochs: int = 1
    ) -> None:
        of_epoch = {s: seconds / n for s, (n, seconds) in cells.items() if seconds is not None}
        usual = fmean(of_epoch.values()) if of_epoch else 1.0
        self._cells = {s: (n, of_epoch.get(s, usual)) for s, (n, _) in cells.items()}
        self._usual = usual_epochs, usual
        known = sum(epochs * work for epochs, work in self._cells.values())
        self.total_work = self.left_work = known + (total - len(cells)) * usual_epochs * usual
        self._epochs: dict[str, int] = {}  # that are done, of each cell
        self._new_work = 0.0

    def add_epoch(self, signature: str, epoch: int) -> None:
        """A cell was trained to the end of an epoch; earlier ones may be of an earlier command."""
        self._new_work += self._cells.get(signature, self._usual)[1]
        self._advance(signature, epoch + 1)

    def end_cell(self, signature: str) -> None:
        """A cell ended, and is not tried again."""
        self._advance(signature, self._cells.get(signature, self._usual)[0])

    def describe(self, passed: float) -> str:
        """`about 90 s left`, `about 12 min left`, after some seconds of this command."""
        if not self._new_work:
            return "time left: unknown"
        seconds = passed * self.left_work / self._new_work
        minutes = f"about {seconds / 60:.0f} min left"
        return f"about {seconds:.0f} s left" if seconds < 120 else minutes

    def _advance(self, signature: str, epochs: int) -> None:
        new = epochs - self._epochs.get(signature, 0)
        self.left_work -= new * self._cells.get(signature, self._usual)[1]
        self._epochs[signature] = epochs


class SweepProgress:
    """A line per finished cell; on a terminal that can redraw also a live bar, elsewhere a line of
    the same at most every minute.

    names: of cells, by their signatures; those of a search come one by one. total: of cells.
    """

    def __init__(
        self, console: Console, names: dict[str, str], total: int, left: TimeLeft, metric: str
    ) -> None:
        self.console, self.names, self.total = console, names, total
        self.left, self.metric = left, metric
        self.done = self.failed = self.stopped = 0
        self._running: dict[str, float] = {}  # since when
        self._last_line = self._begun = time.monotonic()
        columns = TextColumn("{task.description}"), BarColumn()
        bar = Progress(*columns, console=console, transient=True)
        self._bar = bar if console.is_interactive else None

    def __enter__(self) -> "SweepProgress":
        if self._bar is not None:
            self._bar.add_task(self.describe(), total=self.left.total_work)
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_start(self, signature: str) -> None:
        """A worker has the cell (again, after its first worker was lost)."""
        self._running[signature] = time.monotonic()
        self._update()

    def on_epoch(self, signature: str, row: dict[str, Any]) -> None:
        """A cell finished an epoch."""
        self.left.add_epoch(signature, row["epoch"])
        self._update()

    def on_end(self, signature: str, outcome: Outcome) -> None:
        """A cell ended, well or not."""
        seconds = time.monotonic() - self._running.pop(signature, self._begun)
        if not outcome.left:
            self.left.end_cell(signature)
        self.stopped += outcome.stopped
        self.failed += outcome.cause is not None
        if outcome.result is not None:
            self.done += 1
            if (anew := outcome.result.get("begun_anew")) is not None:
                self.on_message(signature, anew)
        text = self._describe_outcome(outcome)
        self.on_message(signature, f"{text} ({seconds:.0f} s)  [{self.describe()}]")
        self._update()

    def on_message(self, signature: str, text: str) -> None:
        """Something a person should know: a retry, another driver."""
        self._print(f"{self.names[signature]}: {text}")

    def describe(self) -> str:
        """One line: done, running, failed, time left."""
        counts = f"{self.done} done, {len(self._running)} running, {self.failed} failed"
        counts += f", {self.stopped} ended early" if self.stopped else ""
        return f"{counts} of {self.total}, {self.left.describe(time.monotonic() - self._begun)}"

    def _describe_outcome(self, outcome: Outcome) -> str:
        if outcome.result is None:
            return "ended early" if outcome.stopped else outcome.left or f"FAILED: {outcome.cause}"
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
        if self._bar is not None:
            completed = self.left.total_work - self.left.left_work
            for task in self._bar.task_ids:
                self._bar.update(task, description=self.describe(), completed=completed)
        elif time.monotonic() - self._last_line > LOG_SECONDS:
            self._print(f"[{self.describe()}]")
