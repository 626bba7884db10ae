"""What a person sees while a sweep runs: done, running, failed, time left."""

import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from capsweep.statistics import metric_format
from capsweep.sweep import time_left
from capsweep.sweep.job import Outcome
from capsweep.sweep.time_left import TimeLeft

LOG_SECONDS = 60.0  # between two lines of a log


@dataclass(frozen=True)
class Standing:
    """How far a sweep is. text: for a person. completed: cells, running ones in part, of total."""

    text: str
    completed: float
    total: int


class ProgressBar:
    """The live bar, below what the same console prints. Nothing where a console cannot redraw."""

    def __init__(self, console: Console) -> None:
        self.is_live = console.is_interactive
        self.console = console
        self._drawn: Progress | None = None

    def show(self, standing: "Standing") -> None:
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

    def _move(self, drawn: Progress, to: "Standing") -> None:
        (task,) = drawn.task_ids
        drawn.update(task, description=to.text, completed=to.completed, total=to.total)


class SweepProgress:
    """A line per finished cell; on a terminal that can redraw also a live bar, elsewhere a line of
    the same at most every minute.
    """

    def __init__(
        self,
        console: Console,
        names: dict[str, str],
        left: TimeLeft,
        metric: str,
    ) -> None:
        self.console, self.names, self.left, self.metric = console, names, left, metric
        self.started_at: dict[str, float] = {}
        self.done = self.failed = self.stopped = 0
        self.results: list[dict[str, Any]] = []
        self._said_at = self._begun = time.monotonic()
        self._bar = ProgressBar(console)

    def __enter__(self) -> "SweepProgress":
        self._show()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.hide()

    def started(self, signature: str) -> None:
        """A worker took the cell (again, after its first worker was lost)."""
        self.left.started(signature)
        self.started_at[signature] = time.monotonic()
        self._show()

    def epoch(self, signature: str, row: dict[str, Any]) -> None:
        """A cell finished an epoch."""
        self.left.epoch(signature, row)
        self._show()

    def ended(self, signature: str, outcome: Outcome) -> None:
        """A cell ended, well or not."""
        took = (outcome.result or {}).get("seconds", {}).get("total")
        self.left.ended(signature, outcome.result is not None or outcome.stopped, took)
        self.done += outcome.result is not None
        self.stopped += outcome.stopped
        self.failed += outcome.cause is not None
        if outcome.result is not None:
            self.results.append(outcome.result)
        self._print(signature, outcome)
        self._show()

    def said(self, signature: str, what: str) -> None:
        """Something a person should know: a retry, another driver."""
        self._line(f"{self.names[signature]}: {what}")

    def status(self) -> str:
        """One line: done, running, failed, time left."""
        running, total = len(self.left.running), self.left.total
        counts = f"{self.done} done, {running} running, {self.failed} failed"
        counts += f", {self.stopped} ended early" if self.stopped else ""
        return f"{counts} of {total}, {time_left.told(self.left.seconds())}"

    def _print(self, signature: str, outcome: Outcome) -> None:
        seconds = time.monotonic() - self.started_at.get(signature, self._begun)
        if outcome.stopped:
            text = "ended early"
        elif outcome.left:
            text = outcome.stop_reason or "left at the end of an epoch, its checkpoint kept"
        elif outcome.result is None:
            text = f"FAILED: {outcome.cause}"
        else:
            if anew := outcome.result.get("begun_anew"):
                self.said(signature, anew)
            value = outcome.result["metrics"].get(self.metric)
            text = "finished" if value is None else self._measured(value)
            if fault := outcome.result.get("tracking_fault"):
                text += f", W&B lost: {fault}"
        self._line(f"{self.names[signature]}: {text} ({seconds:.0f} s)  [{self.status()}]")

    def _line(self, text: str) -> None:
        self._said_at = time.monotonic()
        self._write(text)

    def _write(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _show(self) -> None:
        standing = Standing(self.status(), self.left.completed, self.left.total)
        self._bar.show(standing)
        if not self._bar.is_live and time.monotonic() - self._said_at > LOG_SECONDS:
            self._line(f"[{standing.text}]")

    def _measured(self, value: float) -> str:
        written = metric_format.measure_of(self.metric)
        return f"{self.metric} {written.format_number(value)}{written.unit}"
