"""How a sweep stands while it runs: lines, the time left, and a bar for each running cell."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID
from rich.spinner import Spinner

from capsweep.config.cell import Cell
from capsweep.ledger import listing
from capsweep.ledger.cell_directory import read_trained_epochs
from capsweep.ledger.ledger import Ledger
from capsweep.runtime import terminal
from capsweep.statistics import metric_format
from capsweep.sweep.estimates import Estimates
from capsweep.sweep.job import Outcome

LOG_SECONDS = 60.0  # between two lines of a log that say how a sweep stands


@dataclass(frozen=True)
class CellWork:
    """Epochs of a cell; an epoch's seconds, or any measure that is the same for all cells."""

    epochs: int
    per_epoch: float = 1.0

    @property
    def total(self) -> float:
        """What the whole cell takes."""
        return self.epochs * self.per_epoch


def estimate_works(cells: Sequence[Cell], costs: Estimates) -> dict[str, CellWork]:
    """The work of cells by their signatures; epochs without an estimate are as long as others."""
    seconds = {cell.signature: costs.seconds(cell) for cell in cells}
    epochs = {cell.signature: cell.config["epochs"] for cell in cells}
    known = {s: of_cell / epochs[s] for s, of_cell in seconds.items() if of_cell}
    usual = fmean(known.values()) if known else 1.0
    return {s: CellWork(count, known.get(s, usual)) for s, count in epochs.items()}


class CellBars(Progress):
    """How a sweep stands, in a line, and a bar for each running cell, which moves inside an epoch.

    describe: the text of the line. ledger: in which running cells are looked at.
    """

    def __init__(self, console: Console, describe: Callable[[], str], ledger: Ledger) -> None:
        spinner = "line" if console.options.ascii_only else "dots"
        self.line, self.describe, self.ledger = Spinner(spinner), describe, ledger
        self._bars: dict[str, TaskID] = {}
        self._before: dict[str, float | None] = {}  # what an earlier run left of a cell
        self._last_look = time.monotonic()
        columns = "  {task.description}", BarColumn(20), "{task.fields[at]}"
        off = not console.is_interactive
        super().__init__(
            *columns, console=console, transient=True, refresh_per_second=4, disable=off
        )

    def get_renderables(self) -> Iterator[RenderableType]:
        """What is drawn, several times a second; running cells are looked at once a second."""
        if time.monotonic() - self._last_look > 1.0:
            self._last_look = time.monotonic()
            for signature in list(self._bars):
                epochs = read_trained_epochs(self.ledger, signature)
                if epochs not in (None, self._before.get(signature)):
                    self.move_bar(signature, epochs)
            self.line.update(text=self.describe())
        yield self.line
        yield self.make_tasks_table(self.tasks)

    @property
    def work_inside_epochs(self) -> float:
        """Of the epochs in which running cells are."""
        return sum(task.completed % 1 * task.fields["per_epoch"] for task in self.tasks)

    def add_bar(self, signature: str, name: str, work: CellWork) -> None:
        """The bar of a cell that starts, at its beginning."""
        self.remove_bar(signature)
        self._before[signature] = read_trained_epochs(self.ledger, signature)
        fields = {"at": "starts", "per_epoch": work.per_epoch}
        self._bars[signature] = self.add_task(name, total=work.epochs, **fields)

    def move_bar(self, signature: str, epochs: float) -> None:
        """So many epochs are trained."""
        with suppress(KeyError):  # the cell may end meanwhile
            bar = self._bars[signature]
            at = f"epoch {epochs:.1f} of {self._tasks[bar].total:.0f}"
            self.update(bar, completed=epochs, at=at)

    def remove_bar(self, signature: str) -> None:
        """The cell ended."""
        if signature in self._bars:
            self.remove_task(self._bars.pop(signature))


class SweepProgress:
    """A line per finished cell; below them, on a terminal that can redraw, how the sweep stands,
    with a bar for each running cell; elsewhere a line of the same at most every minute.

    names: of cells, by their signatures; those of a search come one by one. total: of cells.
    works: of cells by their signatures; of every other cell it is `usual`.
    ledger: of the cells.
    """

    def __init__(
        self,
        console: Console,
        names: dict[str, str],
        total: int,
        metric: str,
        works: Mapping[str, CellWork],
        ledger: Ledger,
        usual: CellWork | None = None,
    ) -> None:
        self.console, self.names, self.total, self.metric = console, names, total, metric
        self.ledger = ledger
        self.works, self.usual = works, usual or CellWork(1)
        others = (total - len(works)) * self.usual.total
        self._work = others + sum(work.total for work in works.values())
        self.done = self.failed = self.stopped = 0
        self._work_done: dict[str, float] = {}  # of each cell, also by earlier commands
        self._new_work = 0.0
        self._running: dict[str, float] = {}  # since when
        self._last_line = self._begun = time.monotonic()
        self._bars = CellBars(console, self.describe, ledger)

    def __enter__(self) -> "SweepProgress":
        self._update()
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def on_start(self, signature: str) -> None:
        """A worker has the cell (again, after its first worker was lost)."""
        self._running[signature] = time.monotonic()
        work = self.works.get(signature, self.usual)
        self._bars.add_bar(signature, self.names[signature], work)
        self._update()

    def on_epoch(self, signature: str, row: dict[str, Any]) -> None:
        """A cell finished an epoch."""
        work = self.works.get(signature, self.usual)
        self._work_done[signature] = (row["epoch"] + 1) * work.per_epoch
        self._new_work += work.per_epoch
        self._bars.move_bar(signature, row["epoch"] + 1)
        self._update()

    def on_end(self, signature: str, outcome: Outcome) -> None:
        """No worker has the cell: it ended, well or not, is left for later, or runs elsewhere."""
        began = self._running.pop(signature, None)  # None: another process ran it
        duration = "" if began is None else f" ({time.monotonic() - began:.0f} s)"
        self._bars.remove_bar(signature)
        if outcome.is_final:
            self._work_done[signature] = self.works.get(signature, self.usual).total
        self.stopped += outcome.stopped
        self.failed += outcome.cause is not None
        if outcome.result is not None:
            self.done += 1
            if (fault := outcome.result.get("tracking_fault")) is not None:
                terminal.print_once(f"W&B: {fault}")  # of many cells, as of one
            if (anew := outcome.result.get("begun_anew")) is not None:
                self.on_message(signature, anew)
        text = self._describe_outcome(outcome)
        self.on_message(signature, f"{text}{duration}  [{self.describe()}]")
        if outcome.cause is not None:
            self._print_line(f"  why: {listing.format_show(self.ledger, signature)}")
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
        inside = self._bars.work_inside_epochs
        if not (new := self._new_work + inside):
            return "time left: unknown"
        # A trial may have more epochs than the usual one.
        left = max(0.0, self._work - sum(self._work_done.values()) - inside)
        seconds = left * (time.monotonic() - self._begun) / new
        minutes = f"about {seconds / 60:.0f} min left"
        return f"about {seconds:.0f} s left" if seconds < 120 else minutes

    def _describe_outcome(self, outcome: Outcome) -> str:
        if outcome.result is None:
            failure = outcome.elsewhere or outcome.paused or f"FAILED: {outcome.cause}"
            return "ended early" if outcome.stopped else failure
        value, text = outcome.result["metrics"].get(self.metric), "finished"
        if value is not None:
            measure = metric_format.measure_of(self.metric)
            text = f"{self.metric} {measure.format_number(value)}{measure.unit}"
        return text

    def _print_line(self, text: str) -> None:
        self._last_line = time.monotonic()
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _update(self) -> None:
        self._bars.line.update(text=self.describe())
        if not self.console.is_interactive and time.monotonic() - self._last_line > LOG_SECONDS:
            self._print_line(f"[{self.describe()}]")
