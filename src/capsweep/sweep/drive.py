"""The main job: plan, check, run what is due, and report how it ended."""

import importlib.util
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.spinner import Spinner

from capsweep import terminal
from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.errors import ConfigError, UserError
from capsweep.ledger.cell_directory import read_trained_epochs
from capsweep.ledger.ledger import Ledger
from capsweep.statistics import metric_format
from capsweep.storage import stores
from capsweep.storage.stores import is_url
from capsweep.sweep import executors, expand, more_seeds, plan
from capsweep.sweep.executors import Cluster, Executor
from capsweep.sweep.expand import Point
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.limits import Limits
from capsweep.sweep.plan import Costs, Estimates, Plan, PlannedCell
from capsweep.sweep.queue import JobQueue
from capsweep.sweep.spec import Sweep
from capsweep.terminal import count_of
from capsweep.tracking import mode as modes

# Exit statuses; 2 is bad input. UNFINISHED: a bound of the command came first.
FINISHED, FAILED, UNFINISHED, INTERRUPTED = 0, 1, 3, 130
LOG_SECONDS = 60.0  # between two lines of a log that say how a sweep stands


@dataclass(frozen=True)
class ArrayPart:
    """Part `index` (1 is the first) of `count` of a sweep's cells, for one job of a job array."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "ArrayPart":
        """Read `2/8`. Raises ConfigError naming --shard."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigError(f"--shard {text}: must be i/n with 1 <= i <= n, such as 1/8")
        return cls(int(match[1]), int(match[2]))

    def select_cells(self, cells: Sequence[PlannedCell]) -> tuple[PlannedCell, ...]:
        """The cells of this part: a function of the grid alone, so that all jobs of the array agree
        whatever has finished meanwhile. Parts take turns, from the longest cell to the shortest.
        """
        order = sorted(range(len(cells)), key=lambda i: (-_count_flops(cells[i]), i))
        selected = set(order[self.index - 1 :: self.count])
        return tuple(cell for i, cell in enumerate(cells) if i in selected)


def _count_flops(planned: PlannedCell) -> float:
    """Floating-point operations of the cell's training, up to a factor that all cells share."""
    config = planned.cell.config
    batches = config["limit_batches"]
    limited = 1.0 if batches is None else batches * config["batch_size"]
    return float(planned.size.flops) * config["epochs"] * limited


ReadEpochs = Callable[[str], float | None]


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

    read_epochs: the epochs that a cell has trained, with a fraction; None where nothing tells.
    """

    def __init__(self, console: Console, text: str, read_epochs: ReadEpochs) -> None:
        self.line, self.read_epochs = Spinner("dots", text), read_epochs
        self._bars: dict[str, TaskID] = {}
        self._last_look = time.monotonic()
        columns = (
            TextColumn("  {task.description}", markup=False),
            BarColumn(20),
            TextColumn("{task.fields[at]}"),
        )
        super().__init__(*columns, console=console, transient=True, refresh_per_second=4)

    def get_renderables(self) -> Iterator[RenderableType]:
        """What is drawn, several times a second; running cells are looked at once a second."""
        if time.monotonic() - self._last_look > 1.0:
            self._last_look = time.monotonic()
            for signature in list(self._bars):
                if (epochs := self.read_epochs(signature)) is not None:
                    self.move_bar(signature, epochs)
        yield self.line
        yield self.make_tasks_table(self.tasks)

    def add_bar(self, signature: str, name: str, epochs: int) -> None:
        """The bar of a cell that starts, at its beginning."""
        self.remove_bar(signature)
        self._bars[signature] = self.add_task(name, total=epochs, at="starts")

    def move_bar(self, signature: str, epochs: float) -> None:
        """So many epochs are trained."""
        if (bar := self._bars.get(signature)) is not None:
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
    works: of cells by their signatures; of every other cell it is `usual`. read_epochs: of bars.
    """

    def __init__(
        self,
        console: Console,
        names: dict[str, str],
        total: int,
        metric: str,
        works: Mapping[str, CellWork],
        usual: CellWork | None = None,
        read_epochs: ReadEpochs = lambda signature: None,
    ) -> None:
        self.console, self.names, self.total, self.metric = console, names, total, metric
        self.works, self.usual = works, usual or CellWork(1)
        others = (total - len(works)) * self.usual.total
        self._work = others + sum(work.total for work in works.values())
        self.done = self.failed = self.stopped = 0
        self._work_done: dict[str, float] = {}  # of each cell, also by earlier commands
        self._new_work = 0.0
        self._running: dict[str, float] = {}  # since when
        self._last_line = self._begun = time.monotonic()
        self._bars = CellBars(console, self.describe(), read_epochs)

    def __enter__(self) -> "SweepProgress":
        if self.console.is_interactive:
            self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def on_start(self, signature: str) -> None:
        """A worker has the cell (again, after its first worker was lost)."""
        self._running[signature] = time.monotonic()
        epochs = self.works.get(signature, self.usual).epochs
        self._bars.add_bar(signature, self.names[signature], epochs)
        self._update()

    def on_epoch(self, signature: str, row: dict[str, Any]) -> None:
        """A cell finished an epoch."""
        work = self.works.get(signature, self.usual)
        self._work_done[signature] = (row["epoch"] + 1) * work.per_epoch
        self._new_work += work.per_epoch
        self._bars.move_bar(signature, row["epoch"] + 1)
        self._update()

    def on_end(self, signature: str, outcome: Outcome) -> None:
        """A cell ended, well or not."""
        seconds = time.monotonic() - self._running.pop(signature, self._begun)
        self._bars.remove_bar(signature)
        if not outcome.paused:
            self._work_done[signature] = self.works.get(signature, self.usual).total
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
        if not self._new_work:
            return "time left: unknown"
        # A trial may have more epochs than the usual one.
        left = max(0.0, self._work - sum(self._work_done.values()))
        seconds = left * (time.monotonic() - self._begun) / self._new_work
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
        self._bars.line.update(text=self.describe())
        if not self.console.is_interactive and time.monotonic() - self._last_line > LOG_SECONDS:
            self._print_line(f"[{self.describe()}]")


def choose_executor(name: str) -> Executor:
    """The executor of that name. Raises ConfigError when it is unknown or Ray is not installed."""
    if name not in executors.NAMES:
        raise ConfigError(f"EXECUTOR={name}: have {', '.join(executors.NAMES)}")
    if name != "ray":  # a job of an array runs its part of the cells by itself
        return executors.execute_locally
    for package in ("ray", "pandas"):  # found and not imported, which takes a second
        if importlib.util.find_spec(package) is None:
            cure = "install ray[tune] or set EXECUTOR=local"
            raise ConfigError(f"EXECUTOR=ray: No module named '{package}'; {cure}")
    return _execute_on_ray


def _execute_on_ray(queue: JobQueue, scratch: Path, cluster: Cluster) -> None:
    terminal.announce(
        "starting Ray on this machine" if cluster.address is None else f"joining {cluster.address}"
    )
    from capsweep.sweep.executors import ray_tune

    ray_tune.execute(queue, scratch, cluster)


@dataclass(frozen=True)
class RunOptions:
    """How a sweep is run. limits: of the whole command. part: of an array, for this job.

    retry_failed: run cells again that failed in a way that cannot go better by itself.
    """

    executor: str = "ray"
    limits: Limits = field(default_factory=Limits)
    part: ArrayPart | None = None
    retry_failed: bool = False


@dataclass(frozen=True)
class SweepEnd:
    """How a sweep ended: the exit status and lines for a person."""

    status: int
    lines: tuple[str, ...] = ()


def run(sweep: Sweep, points: Sequence[Point], options: RunOptions, console: Console) -> SweepEnd:
    """Run the cells that are due. All that can be wrong is found before an executor starts.

    Raises UserError naming key or file.
    """
    config = points[0].cell.config
    node, limits = places.resolve(config["places"]), options.limits
    ledger = Ledger(node.ledger)
    expand.check_distinct_fields(sweep, points)
    planned = plan.make_plan(points, ledger)
    execute = choose_executor(options.executor)
    prepare_storage(node, ledger)
    cells = planned.cells if options.part is None else options.part.select_cells(planned.cells)
    ready = Plan(tuple(cell for cell in cells if not cell.points[0].waits))
    due = [cell for cell in ready.cells if cell.is_due(options.retry_failed)]
    terminal.print_line(console, plan.describe_plan(sweep, ready))
    plan.check_data(due, node)
    repeats = sum(cell.fails_again and cell not in due for cell in ready.cells)
    if not due:
        lines = _describe_repeats(repeats) or ["nothing to run: every cell is finished"]
        return SweepEnd(FAILED if repeats else FINISHED, tuple(lines))
    mode, reason = modes.decide_mode(config)
    costs = Costs(ledger, node, ready.cells)
    if limits.bounds.budget is not None:
        cells_due = [cell.cell for cell in due]
        costs.calibrate_cells(cells_due, lambda text: terminal.print_line(console, text))
    jobs = _make_jobs(sweep, points, due, mode, costs)
    terminal.print_line(console, reason)
    names = {planned.cell.signature: planned.points[0].name for planned in due}
    for line in limits.describe():
        terminal.print_line(console, line)
    works = estimate_works([planned.cell for planned in due], costs)
    read_epochs = partial(read_trained_epochs, ledger)
    with SweepProgress(
        console, names, len(due), sweep.metric, works, read_epochs=read_epochs
    ) as progress:
        queue = JobQueue(jobs, ledger, progress, costs, limits)
        execute(queue, node.storage / "ray", Cluster.from_config(config))
    finished = len(ready.cells) - len(due) - repeats + progress.done
    return describe_end(queue, finished, len(ready.cells), "cells", repeats)


def run_in_order(
    sweep: Sweep, points: Sequence[Point], options: RunOptions, console: Console
) -> SweepEnd:
    """Run what waits for nothing; then, where arms are matched, what it had to wait for.

    Raises UserError naming key or file.
    """
    expand.check_rerun(sweep, points)
    points = expand.set_accuracies(sweep, points)
    waiting = sum(point.waits for point in points)
    end = run(sweep, points, options, console)
    if end.status == INTERRUPTED or not waiting:
        return end
    points = expand.set_accuracies(sweep, points)
    left = sum(point.waits for point in points)
    if left < waiting:
        end = run(sweep, points, options, console)
    if not left:
        return end
    text = f"left: {count_of(left, 'cell')}, to stop at the accuracy of {sweep.baseline}'s own"
    status = UNFINISHED if end.status == FINISHED else end.status
    return SweepEnd(status, (*end.lines, f"{text}; the same command goes on"))


def add_seeds(
    sweep: Sweep, points: Sequence[Point], options: RunOptions, last: str, console: Console
) -> SweepEnd:
    """Look after every batch of seeds, and add more where the order of two rows is undecided.

    Raises UserError naming MORE_SEEDS.
    """
    planned = more_seeds.plan_looks(sweep, last)
    node = places.resolve(points[0].cell.config["places"])
    ledger = Ledger(node.ledger)
    added = more_seeds.load(node, sweep)
    if added.looks not in ((), planned):
        raise UserError(
            f"MORE_SEEDS={last}: this sweep was looked at with other plans, {added.looks}; keep to "
            f"them, or remove sweeps/{sweep.name}.seeds.json in {node.kept} and start anew"
        )
    added = replace(added, looks=planned)
    end = run(sweep, added.add_points(points), options, console)
    if end.status == FINISHED:  # also where this look decides all: it was one
        more_seeds.save(node, sweep, added)
    for look in planned[1:]:
        more = more_seeds.plan_seeds(sweep, added.add_points(points), ledger, added, look)
        if more is None or end.status != FINISHED:
            return end
        if more.seeds != added.seeds:
            titles = {p.title for p in points if more_seeds.hash_place(p) in more.seeds}
            terminal.print_line(
                console, f"undecided: {', '.join(sorted(titles))}: up to {look} seeds"
            )
            more_seeds.save(node, sweep, added := more)
            end = run(sweep, added.add_points(points), options, console)
    return end


def prepare_storage(node: Places, ledger: Ledger) -> None:
    """Make the folders of a sweep, and prove that it can write all that it must keep.

    Raises UserError naming `places.storage` or `places.ledger`.
    """
    places.prepare(node)
    stores.prove_writable(ledger.store)
    if is_url(node.kept):  # a folder was proven with the others
        stores.prove_writable(more_seeds.open_memory(node))


def _make_jobs(
    sweep: Sweep, points: Sequence[Point], due: Sequence[PlannedCell], mode: str, costs: Costs
) -> list[Job]:
    labels, jobs = expand.make_labels(sweep, points), []
    for planned in due:
        cell = modes.with_mode(planned.cell, mode)
        cpu, facts = cell.config["resources"]["cpu"], {"estimate_seconds": costs.seconds(cell)}
        jobs.append(Job(cell, labels[planned.cell.signature], cpu=cpu, facts=facts))
    return jobs


def describe_end(
    queue: JobQueue, finished: int, total: int, noun: str, repeats: int = 0
) -> SweepEnd:
    """Exit status and last lines: a failure outweighs cells that a bound left."""
    lines = _describe_repeats(repeats)
    so_far = f"{finished} of {total} {noun} are finished; the same command goes on"
    if not queue.is_exhausted:
        return SweepEnd(INTERRUPTED, (*lines, f"stopped: {so_far}"))
    if queue.count_left:
        lines.append(f"{queue.limits.stop_reason}: {so_far}")
    if queue.failed:
        lines.append(f"{len(queue.failed)} of {total} {noun} failed; the table says why")
    if queue.failed or repeats:
        return SweepEnd(FAILED, tuple(lines))
    if queue.count_left:
        return SweepEnd(UNFINISHED, tuple(lines))
    return SweepEnd(FINISHED, (*lines, f"all {total} {noun} are finished"))


def _describe_repeats(count: int) -> list[str]:
    text = f"{count_of(count, 'cell')} failed before, in a way that the same code repeats; "
    return [f"{text}RETRY=failed runs them again"] if count else []
