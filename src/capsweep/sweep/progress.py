"""What a person sees while a sweep runs: done, running, failed, time left."""

import time
from typing import Any

from rich.console import Console

from capsweep.statistics import metric_format
from capsweep.sweep.job import Outcome

LOG_SECONDS = 60.0  # between two lines of a log


class SweepProgress:
    """A line per finished cell; below them, on a terminal that can redraw, how the sweep stands,
    elsewhere a line of the same at most every minute.

    names: of cells, by their signatures; those of a search come one by one. total: of cells.
    epochs: of a usual cell; the time left is estimated as if all epochs were of one length.
    """

    def __init__(
        self, console: Console, names: dict[str, str], total: int, epochs: float, metric: str
    ) -> None:
        self.console, self.names, self.total = console, names, total
        self.epochs, self.metric = epochs, metric
        self.done = self.failed = self.stopped = 0
        self._epochs_done: dict[str, float] = {}  # of each cell, also by earlier commands
        self._new_epochs = 0
        self._running: dict[str, float] = {}  # since when
        self._last_line = self._begun = time.monotonic()
        self._status = console.status(self.describe())

    def __enter__(self) -> "SweepProgress":
        if self.console.is_interactive:
            self._status.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._status.stop()

    def on_start(self, signature: str) -> None:
        """A worker has the cell (again, after its first worker was lost)."""
        self._running[signature] = time.monotonic()
        self._update()

    def on_epoch(self, signature: str, row: dict[str, Any]) -> None:
        """A cell finished an epoch."""
        self._epochs_done[signature] = row["epoch"] + 1
        self._new_epochs += 1
        self._update()

    def on_end(self, signature: str, outcome: Outcome) -> None:
        """A cell ended, well or not."""
        seconds = time.monotonic() - self._running.pop(signature, self._begun)
        if not outcome.paused:
            self._epochs_done[signature] = self.epochs
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
        self._print_line(f"{self.names[signature]}: {text}")

    def describe(self) -> str:
        """One line: done, running, failed, time left."""
        counts = f"{self.done} done, {len(self._running)} running, {self.failed} failed"
        counts += f", {self.stopped} ended early" if self.stopped else ""
        return f"{counts} of {self.total}, {self._describe_time_left()}"

    def _describe_time_left(self) -> str:
        if not self._new_epochs:
            return "time left: unknown"
        epochs = self.total * self.epochs - sum(self._epochs_done.values())
        seconds = epochs * (time.monotonic() - self._begun) / self._new_epochs
        minutes = f"about {seconds / 60:.0f} min left"
        return f"about {seconds:.0f} s left" if seconds < 120 else minutes

    def _describe_outcome(self, outcome: Outcome) -> str:
        if outcome.result is None:
            failure = outcome.paused or f"FAILED: {outcome.cause}"
            return "ended early" if outcome.stopped else failure
        value, text = outcome.result["metrics"].get(self.metric), "finished"
        if value is not None:
            measure = metric_format.measure_of(self.metric)
            text = f"{self.metric} {measure.format_number(value)}{measure.unit}"
        fault = outcome.result.get("tracking_fault")
        return f"{text}, W&B lost: {fault}" if fault else text

    def _print_line(self, text: str) -> None:
        self._last_line = time.monotonic()
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _update(self) -> None:
        self._status.update(self.describe())
        if not self.console.is_interactive and time.monotonic() - self._last_line > LOG_SECONDS:
            self._print_line(f"[{self.describe()}]")
