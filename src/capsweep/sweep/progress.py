"""What a person sees while a sweep runs: done, running, failed, time left."""

import time
from typing import Any

from rich.console import Console

from capsweep.statistics import measure
from capsweep.sweep import bar
from capsweep.sweep.bar import LOG_SECONDS, Bar, Standing, Telling
from capsweep.sweep.job import Outcome


class SweepProgress:
    """A line per finished cell; on a terminal that can redraw also a live bar, elsewhere a line of
    the same at most every minute, and in a job's log also what its watchers draw their bar of. Time
    left counts epochs.
    """

    def __init__(
        self,
        console: Console,
        names: dict[str, str],
        epochs: dict[str, int],
        metric: str,
        total: int | None = None,
    ) -> None:
        self.console, self.names, self.epochs, self.metric = console, names, epochs, metric
        self.total = len(names) if total is None else total
        self.usual_epochs = 1  # of a cell that is not in `epochs`
        self.stopped = 0
        self.begun = time.monotonic()
        self.running: dict[str, float] = {}  # signature -> fraction of its epochs
        self.started_at: dict[str, float] = {}
        self.done = self.failed = 0
        self.results: list[dict[str, Any]] = []
        self._said_at = self.begun
        self._bar = Bar(console)
        self._telling = Telling(self._write) if bar.is_job() else None

    def __enter__(self) -> "SweepProgress":
        self._show()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.hide()
        if self._telling is not None:
            self._telling.over()

    def started(self, signature: str) -> None:
        """A worker took the cell (again, after its first worker was lost)."""
        self.running[signature] = 0.0
        self.started_at[signature] = time.monotonic()
        self._show()

    def epoch(self, signature: str, row: dict[str, Any]) -> None:
        """A cell finished an epoch."""
        self.running[signature] = (row["epoch"] + 1) / self.epochs.get(signature, self.usual_epochs)
        self._show()

    def ended(self, signature: str, outcome: Outcome) -> None:
        """A cell ended, well or not."""
        self.running.pop(signature, None)
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
        counts = f"{self.done} done, {len(self.running)} running, {self.failed} failed"
        counts += f", {self.stopped} ended early" if self.stopped else ""
        return f"{counts} of {self.total}, {self._time_left()}"

    def _completed(self) -> float:
        return self.done + self.failed + self.stopped + sum(self.running.values())

    def _time_left(self) -> str:
        fraction = self._completed()
        if fraction == 0:
            return "time left: unknown"
        left = (time.monotonic() - self.begun) / fraction * (self.total - fraction)
        return f"about {left:.0f} s left" if left < 120 else f"about {left / 60:.0f} min left"

    def _print(self, signature: str, outcome: Outcome) -> None:
        seconds = time.monotonic() - self.started_at.get(signature, self.begun)
        if outcome.stopped:
            text = "ended early"
        elif outcome.left:
            text = "left at the end of an epoch, its checkpoint kept"
        elif outcome.result is None:
            text = f"FAILED: {outcome.cause}"
        else:
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
        standing = Standing(self.status(), self._completed(), self.total)
        self._bar.show(standing)
        if self._telling is not None:
            self._telling.show(standing)
        if not self._bar.is_live and time.monotonic() - self._said_at > LOG_SECONDS:
            self._line(f"[{standing.text}]")

    def _measured(self, value: float) -> str:
        written = measure.of(self.metric)
        return f"{self.metric} {written.number(value)}{written.unit}"
