"""The run of a sweep: plan it, check its data, run the cells that are due, and say how it ended."""

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from capsweep.config import places
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Ledger, fails_again
from capsweep.runtime import terminal
from capsweep.runtime.terminal import count_of
from capsweep.storage import stores
from capsweep.sweep import expand, plan
from capsweep.sweep.estimates import Estimates, Limits, calibrate_cells, read_estimates
from capsweep.sweep.expand import Point
from capsweep.sweep.plan import Plan, PlannedCell
from capsweep.sweep.progress import SweepProgress, weigh_cells
from capsweep.sweep.queue import Executor, JobQueue, execute_locally
from capsweep.sweep.spec import Sweep
from capsweep.tracking import content
from capsweep.tracking import mode as modes
from capsweep.training.run import Job

# Exit statuses; 2 is bad input. UNFINISHED: no cell failed, but some cells have not finished.
FINISHED, FAILED, UNFINISHED, INTERRUPTED = 0, 1, 3, 130
NOTHING = "nothing to run: every cell is finished"


Part = tuple[int, int]  # index of a job in its array, counted from 1, and count of the jobs


def parse_part(text: str) -> Part:
    """Read the value of SHARD, such as `2/8`.

    Raises:
        ConfigError: The value is not i/n with 1 <= i <= n.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(f"SHARD={text}: must be i/n with 1 <= i <= n; SHARD=1/8 is job 1 of 8")
    return int(match[1]), int(match[2])


def select_part(cells: Sequence[PlannedCell], part: Part) -> tuple[PlannedCell, ...]:
    """Return the cells that one job of an array runs.

    The cells of each seed are sorted by their FLOPs, the largest first, and given to the jobs in
    turn, so that all jobs have work if only some seeds are missing. With each seed, another job
    comes first. Finished cells are given to jobs too, so that the division is the same whenever a
    job starts.
    """
    index, count = part
    by_seed: dict[int, list[PlannedCell]] = {}
    for planned in sorted(cells, key=_count_flops, reverse=True):
        by_seed.setdefault(planned.cell.config["seed"], []).append(planned)
    groups = enumerate(by_seed.values(), start=1)
    return tuple(cell for n, group in groups for cell in group[(index - n) % count :: count])


def _count_flops(planned: PlannedCell) -> float:
    """Return FLOPs x epochs x images, the number by which cells are sorted.

    The FLOPs are those of one image. The images are those to which `limit_batches` limits an epoch;
    without a limit, this factor is 1.
    """
    config = planned.cell.config
    batches = config["limit_batches"]
    limited = 1.0 if batches is None else batches * config["batch_size"]
    return float(planned.size.flops) * config["epochs"] * limited


def choose_executor(name: str) -> Executor:
    """Return the function that runs the jobs of a queue, chosen by the value of EXECUTOR.

    Raises:
        ConfigError: There is no such executor, or Ray is not installed.
    """
    if name in ("local", "array"):  # each job of an array runs its cells in its own process
        return execute_locally
    if name != "ray":
        raise ConfigError(f"EXECUTOR={name}: no such executor; have ray, local, array")
    for package in ("ray", "pandas"):  # only looked for, because an import takes a second
        if importlib.util.find_spec(package) is None:
            cure = "install ray[tune] or set EXECUTOR=local"
            raise ConfigError(f"EXECUTOR=ray: the package {package} is not installed; {cure}")
    return _execute_on_ray


def _execute_on_ray(queue: JobQueue, scratch: Path, config: Mapping[str, Any]) -> None:
    address = config["cluster"]["address"]
    terminal.announce(f"joining {address}" if address else "starting Ray here")
    from capsweep.sweep import ray_tune

    ray_tune.execute(queue, scratch, config)


@dataclass(frozen=True)
class RunOptions:
    """The options of one command that runs a sweep."""

    executor: str = "ray"  # ray, local (in this process) or array (in a job of an array)
    limits: Limits = field(default_factory=Limits)  # BUDGET and MAX_HOURS of the whole command
    part: Part | None = None  # which job of an array this is; None outside an array
    retry_failed: bool = False  # whether to run cells that would fail again with the same code
    # Called with the number of ended cells after each event of a cell; `int` does nothing.
    renew: Callable[[int], object] = int


@dataclass(frozen=True)
class SweepEnd:
    """The end of a sweep: its exit status, and the last lines that the command prints."""

    status: int  # exit status: FINISHED, FAILED, UNFINISHED or INTERRUPTED
    lines: tuple[str, ...] = ()  # printed last


def run(sweep: Sweep, points: Sequence[Point], options: RunOptions, console: Console) -> SweepEnd:
    """Run the due cells of a sweep (`PlannedCell.is_due`).

    Cells that wait for the baseline are left out. Configuration, networks and data are checked
    before the executor starts.

    Raises:
        UserError: A key or file is wrong; the message names it.
    """
    config = points[0].cell.config
    node, limits = places.resolve(config["places"]), options.limits
    ledger = Ledger(node.ledger)
    expand.check_distinct_fields(sweep, points)
    planned = plan.make_plan(points, ledger)
    execute = choose_executor(options.executor)
    prepare_storage(node, ledger)
    labels = expand.make_labels(sweep, [point for point in points if not point.waits])
    if config["logger"]["name"] == "wandb":  # earlier sweeps may have trained some of the cells
        content.write_columns(node.storage, labels)
    cells = planned.cells if options.part is None else select_part(planned.cells, options.part)
    ready = Plan(tuple(cell for cell in cells if not cell.points[0].waits))
    due = [cell for cell in ready.cells if cell.is_due(options.retry_failed)]
    if due:
        terminal.announce(f"{sweep.name}: checking its data")
    plan.check_data(due, node)
    console.out(plan.describe_plan(sweep, ready))
    repeats = sum(fails_again(cell.entry) and cell not in due for cell in ready.cells)
    lines = _describe_repeats(repeats, sweep, ledger)
    if not due:
        return SweepEnd(FAILED, lines) if lines else SweepEnd(FINISHED, (NOTHING,))
    mode, reason = modes.decide_mode(config)
    costs = read_estimates(ledger, ready.entries, ready.begun)
    if limits.budget is not None:
        calibrate_cells(costs, [cell.cell for cell in due], ledger, node, console)
    jobs = _make_jobs(labels, due, mode, costs)
    console.out(reason)
    names = {planned.cell.signature: planned.points[0].name for planned in due}
    lengths = weigh_cells([planned.cell for planned in due], costs)
    shown = console, names, len(due), sweep.metric, lengths, ledger, options.renew
    with SweepProgress(*shown) as progress:
        queue = JobQueue(jobs, ledger, progress, costs, limits)
        execute(queue, node.storage / "ray", config)
    finished = len(ready.cells) - len(due) - repeats + progress.done
    return describe_end(queue, finished, len(ready.cells), "cell", lines)


def run_in_order(
    sweep: Sweep, points: Sequence[Point], options: RunOptions, console: Console
) -> SweepEnd:
    """Run a sweep in rounds, because cells of matched arms wait for cells of the baseline.

    The first round runs the cells that do not wait. After each round, the accuracies that the
    baseline has reached are read, and the next round runs the cells that waited for these
    accuracies. A sweep without matched arms has only one round.

    Raises:
        UserError: A key or file is wrong; the message names it.
    """
    expand.check_rerun(sweep, points)
    points = expand.set_accuracies(sweep, points)
    while True:
        end, left = run(sweep, points, options, console), sum(point.waits for point in points)
        if not left or end.status == INTERRUPTED:
            return end
        points = expand.set_accuracies(sweep, points)
        if sum(point.waits for point in points) == left:
            break
    text = f"they need the accuracy of a cell of {sweep.baseline} that has not finished"
    line = f"{count_of(left, 'cell')} left: {text}; type the same command again to continue"
    return SweepEnd(UNFINISHED if end.status == FINISHED else end.status, (*end.lines, line))


def prepare_storage(node: places.Places, ledger: Ledger) -> None:
    """Make the folders of a sweep, and check that its storage and ledger can be written.

    Raises:
        UserError: The storage or the ledger cannot be written; the message names `places.storage`
            or `places.ledger`.
    """
    places.prepare(node)
    stores.prove_writable(ledger.store)


def _make_jobs(
    labels: Mapping[str, content.Labels], due: Sequence[PlannedCell], mode: str, costs: Estimates
) -> list[Job]:
    """Return a job for each due cell; the cell with the most FLOPs comes first.

    The queue keeps this order for cells whose duration is unknown.
    """
    jobs = []
    for planned in sorted(due, key=_count_flops, reverse=True):
        cell = planned.cell.with_mode(mode)
        cpu, facts = cell.config["resources"]["cpu"], {"estimate_seconds": costs.seconds(cell)}
        start = planned.start.signature
        jobs.append(Job(cell, labels[cell.signature], cpu, result_extras=facts, shorter=start))
    return jobs


def describe_end(
    queue: JobQueue, finished: int, total: int, noun: str, repeats: Sequence[str] = ()
) -> SweepEnd:
    """Return the exit status and the last lines of a command.

    The exit status is the first of these that applies:

    - INTERRUPTED: The executor returned before the queue was exhausted.
    - FAILED: A cell failed in this command, or failed in an earlier command and was not run again.
    - UNFINISHED: Some cells were not run, because of a time limit, changed code or refused nodes.
    - FINISHED: All cells are finished.

    Args:
        queue: The queue after its executor returned.
        finished: The number of finished cells. Cells that earlier commands finished are included.
        total: The number of all cells.
        noun: The word for a cell in the lines: "cell" or "trial".
        repeats: Lines about cells that failed in an earlier command and were not run again.
    """
    lines, every = [*repeats], f"{count_of(total, noun)} {'is' if total == 1 else 'are'} finished"
    so_far = f"{finished} of {every}; type the same command again to continue"
    if not queue.is_exhausted:
        return SweepEnd(INTERRUPTED, (*lines, f"stopped: {so_far}"))
    if queue.count_left:
        lines.append(f"{queue.limits.stop_reason}: {so_far}")
    if queue.failed:
        lines.append(f"{len(queue.failed)} of {count_of(total, noun)} failed; the table says why")
    if not lines:
        return SweepEnd(FINISHED, (every if total == 1 else f"all {every}",))
    return SweepEnd(FAILED if queue.failed or repeats else UNFINISHED, tuple(lines))


def _describe_repeats(count: int, sweep: Sweep, ledger: Ledger) -> tuple[str, ...]:
    if not count:
        return ()
    why = terminal.format_command("ledger", "failures", sweep.name, f"LEDGER={ledger.store.root}")
    text = f"{count_of(count, 'cell')} failed before, and would fail again with the same code; "
    return f"{text}RETRY=failed runs them again", f"  why: {why}"
