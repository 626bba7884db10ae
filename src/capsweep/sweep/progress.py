"""The progress of a running sweep: lines, the time left, and a bar for each running cell."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID

from capsweep.config.cell import Cell
from capsweep.ledger import listing
from capsweep.ledger.ledger import Ledger
from capsweep.runtime import terminal
from capsweep.statistics import metric_format
from capsweep.sweep.estimates import Estimates
from capsweep.training.run import Outcome

LOG_SECONDS = 60.0  # without a terminal: seconds between lines about the sweep


def weigh_cells(cells: Sequence[Cell], costs: Estimates) -> dict[str, float]:
    """Return the length of each cell, by signature.

    Lengths are estimates in seconds. If a cell has no estimate, all lengths are numbers of epochs.
    """
    seconds = {cell.signature: costs.seconds(cell) or 0.0 for cell in cells}
    epochs = {cell.signature: float(cell.config["epochs"]) for cell in cells}
    return seconds if all(seconds.values()) else epochs


class SweepProgress:
    """The progress of a sweep, printed while the sweep runs.

    A line is printed for each cell that ended. A terminal also shows a bar for the whole sweep and
    a bar for each running cell. Without a terminal, a line about the whole sweep is printed at most
    once in LOG_SECONDS.

    Args:
        console: The console on which lines and bars are printed.
        names: The names of cells, by signature. A search adds names while it runs.
        total: The number of cells that are to run.
        metric: The metric that the line of a finished cell shows.
        lengths: The lengths of cells, by signature, as `weigh_cells` gives them. A cell that is not
            in the mapping has length 1.
        ledger: The ledger of the cells. The printed command that explains a failure names it.
        renew: Called after each start, epoch and end of a cell, with the number of ended cells.
            The default does nothing.
    """

    def __init__(
        self,
        console: Console,
        names: dict[str, str],
        total: int,
        metric: str,
        lengths: Mapping[str, float],
        ledger: Ledger,
        renew: Callable[[int], object] = int,
    ) -> None:
        self.console, self.names, self.total, self.metric = console, names, total, metric
        self.ledger, self.lengths, self.renew = ledger, lengths, renew
        self._work = total - len(lengths) + sum(lengths.values())
        self.done = self.failed = self.stopped = 0
        self._work_done: dict[str, float] = {}  # by signature; includes epochs of earlier commands
        self._new_work = 0.0  # the part of the work that this command has done
        # By signature: when a running cell started, its number of epochs, and its bar.
        self._running: dict[str, tuple[float, int, TaskID]] = {}
        self._begun = self._last_line = time.monotonic()
        columns = "{task.description}", BarColumn(20), "{task.fields[at]}"
        is_off = not console.is_interactive
        self._bars = Progress(*columns, console=console, transient=True, disable=is_off)
        self._whole = self._bars.add_task("all cells", total=self._work, at="")

    def __enter__(self) -> "SweepProgress":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def on_start(self, signature: str, epochs: int) -> None:
        """Show that a worker started a cell of `epochs` epochs."""
        bar = self._bars.add_task(self.names[signature], total=epochs, at="starts")
        self._running[signature] = time.monotonic(), epochs, bar
        self._update()

    def on_epoch(self, signature: str, row: dict[str, Any]) -> None:
        """Show that a cell finished the epoch whose metrics are in `row`."""
        if signature not in self._running:  # the row arrived after the end of its cell
            return
        _, epochs, bar = self._running[signature]
        done = row["epoch"] + 1
        of_one = self.lengths.get(signature, 1.0) / epochs
        self._work_done[signature] = done * of_one
        self._new_work += of_one
        self._bars.update(bar, completed=done, at=f"epoch {done} of {epochs}")
        self._update()

    def on_end(self, signature: str, outcome: Outcome) -> None:
        """Show that a cell left its worker.

        The cell finished, failed, was paused, was ended early by a search, or runs elsewhere.
        """
        duration = ""
        if signature in self._running:  # not if the cell ended in another process
            began, _, bar = self._running.pop(signature)
            self._bars.remove_task(bar)
            duration = f" ({time.monotonic() - began:.0f} s)"
        if outcome.elsewhere is None and not outcome.paused:  # the cell has ended for good
            self._work_done[signature] = self.lengths.get(signature, 1.0)
        self.stopped += outcome.stopped
        self.failed += outcome.cause is not None
        if outcome.result is not None:
            self.done += 1
            if (fault := outcome.result.get("tracking_fault")) is not None:
                terminal.print_once(f"W&B: {fault}")  # many cells may have the same fault
            if (restarted := outcome.result.get("begun_anew")) is not None:
                self.on_message(signature, restarted)
        text = self._describe_outcome(outcome)
        self.on_message(signature, f"{text}{duration}  [{self.describe()}]")
        if outcome.cause is not None:
            self._print_line(f"  why: {listing.format_show(self.ledger, signature)}")
        self._update()

    def on_message(self, signature: str, text: str) -> None:
        """Print a line about a cell, for example that the cell is tried again."""
        self._print_line(f"{self.names[signature]}: {text}")

    def describe(self) -> str:
        """Return a line with the numbers of done, running and failed cells, and the time left."""
        counts = f"{self.done} done, {len(self._running)} running, {self.failed} failed"
        counts += f", {self.stopped} ended early" if self.stopped else ""
        return f"{counts} of {self.total}, {self._describe_time_left()}"

    def _describe_time_left(self) -> str:
        """Estimate the time left from the work that this command has done so far."""
        if not self._new_work:
            return "time left: unknown"
        left = self._work - sum(self._work_done.values())
        seconds = left * (time.monotonic() - self._begun) / self._new_work
        minutes = f"about {seconds / 60:.0f} min left"
        return f"about {seconds:.0f} s left" if seconds < 120 else minutes

    def _describe_outcome(self, outcome: Outcome) -> str:
        """Return the text for the end of a cell: its metric, or why the cell has no result."""
        if outcome.stopped:
            return "ended early"
        if outcome.result is None:
            return outcome.elsewhere or outcome.paused or f"FAILED: {outcome.cause}"
        if (value := outcome.result["metrics"].get(self.metric)) is None:
            return "finished"
        measure = metric_format.measure_of(self.metric)
        return f"{self.metric} {measure.format_number(value)}{measure.unit}"

    def _print_line(self, text: str) -> None:
        self._last_line = time.monotonic()
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _update(self) -> None:
        done = sum(self._work_done.values())
        self._bars.update(self._whole, completed=done, at=self.describe())
        if not self.console.is_interactive and time.monotonic() - self._last_line > LOG_SECONDS:
            self._print_line(f"[{self.describe()}]")
        self.renew(self.done + self.failed + self.stopped)
