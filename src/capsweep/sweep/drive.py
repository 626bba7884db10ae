"""The main job: plan, check, run what is due, and say what happened."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console

from capsweep.config import places
from capsweep.config.places import Places
from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger
from capsweep.storage import stores
from capsweep.storage.object_store import is_url
from capsweep.sweep import executors, expand, matched, more_seeds, plan, run_labels
from capsweep.sweep.cluster import Cluster
from capsweep.sweep.costs import Costs
from capsweep.sweep.expand import Point
from capsweep.sweep.job import Job
from capsweep.sweep.limits import Limits
from capsweep.sweep.memory import open_memory
from capsweep.sweep.plan import Plan, PlannedCell
from capsweep.sweep.progress import SweepProgress
from capsweep.sweep.queue import JobQueue
from capsweep.sweep.shard import Shard
from capsweep.sweep.spec import Sweep
from capsweep.sweep.time_left import TimeLeft
from capsweep.tracking import mode as modes
from capsweep.tracking.labels import Labels

# Exit statuses; 2 is bad input. UNFINISHED: a bound of the command came first.
FINISHED, FAILED, UNFINISHED, INTERRUPTED = 0, 1, 3, 130


@dataclass(frozen=True)
class How:
    """How a sweep is run. limits: of the whole command. shard: this job's part of an array.

    retry_failed: run cells again that failed in a way that cannot go better by itself.
    """

    executor: str = "ray"
    limits: Limits = field(default_factory=Limits)
    shard: Shard | None = None
    retry_failed: bool = False


@dataclass(frozen=True)
class Report:
    """How the sweep ended: an exit status and what there is to say."""

    status: int
    lines: tuple[str, ...] = field(default_factory=tuple)


def run(sweep: Sweep, points: Sequence[Point], how: How, console: Console) -> Report:
    """Run the cells that are due. All that can be wrong is found before an executor starts.

    Raises UserError naming key or file.
    """
    config = points[0].cell.config
    here = places.resolve(config["places"])
    ledger = Ledger(here.ledger)
    expand.check_told_apart(sweep, points)
    planned = plan.make_plan(points, ledger)
    execute = executors.choose(how.executor)
    prepare(here, ledger)
    mine = _ready(planned if how.shard is None else Plan(how.shard.select(planned.cells)))
    due = [cell for cell in mine.cells if cell.is_due(how.retry_failed)]
    plan.check_data(due, here)
    _say(console, plan.describe(sweep, mine))
    if not due:
        return _nothing_due(mine)
    mode, reason = modes.settle(config)
    _say(console, reason)
    costs = Costs(ledger, here, mine.cells)
    if how.limits.bounds.budget is not None:
        costs.calibrate([cell.cell for cell in due], lambda text: _say(console, text))
    labels = run_labels.of(sweep, points)
    jobs = [_job(cell, labels[cell.cell.signature], mode, costs) for cell in due]
    for line in how.limits.describe(costs.seconds_of_epoch([cell.cell for cell in due])):
        _say(console, line)
    with _progress(sweep, due, jobs, console) as progress:
        queue = JobQueue(jobs, ledger, progress, costs, how.limits)
        execute(queue, here.storage / "ray", Cluster.of(config))
    report = _report(mine, len(due), queue, progress)
    accuracy = costs.accuracy(progress.results)
    said = [*([accuracy] if accuracy else []), *how.limits.summary()]
    return Report(report.status, (*said, *report.lines))


def run_in_order(sweep: Sweep, points: Sequence[Point], how: How, console: Console) -> Report:
    """Run what waits for nothing; then, where arms are matched, what it had to wait for.

    Raises UserError naming key or file.
    """
    matched.check_rerun(sweep, points)
    points = matched.settle(sweep, points)
    waiting = sum(point.waits for point in points)
    report = run(sweep, points, how, console)
    if report.status == INTERRUPTED or not waiting:
        return report
    points = matched.settle(sweep, points)
    left = sum(point.waits for point in points)
    if left < waiting:
        report = run(sweep, points, how, console)
    if not left:
        return report
    told = f"{left} cells wait for those of {sweep.baseline}, whose accuracy they are to stop at"
    status = UNFINISHED if report.status == FINISHED else report.status
    return Report(status, (*report.lines, f"{told}; the same command goes on"))


def add_seeds(
    sweep: Sweep, points: Sequence[Point], how: How, last: str, console: Console
) -> Report:
    """Look after every batch of seeds, and add more where the order of two rows is undecided.

    Raises UserError naming MORE_SEEDS.
    """
    planned = more_seeds.plan_looks(sweep, last)
    here = places.resolve(points[0].cell.config["places"])
    ledger, memory = Ledger(here.ledger), open_memory(here)
    added = more_seeds.load(memory, sweep)
    if added.looks not in ((), planned):
        raise UserError(
            f"MORE_SEEDS={last}: this sweep was looked at with other plans, {added.looks}; keep to "
            f"them, or remove {more_seeds.place(memory, sweep)} and start anew"
        )
    added = replace(added, looks=planned)
    report = run(sweep, added.extend(points), how, console)
    if report.status == FINISHED:  # also where this look decides all: it was one
        more_seeds.store(memory, sweep, added)
    for look in planned[1:]:
        more = more_seeds.next_look(sweep, added.extend(points), ledger, added, look)
        if more is None or report.status != FINISHED:
            return report
        if more.seeds != added.seeds:
            titles = {p.title for p in points if more_seeds.place_of(p) in more.seeds}
            _say(console, f"undecided: {', '.join(sorted(titles))}: up to {look} seeds")
            more_seeds.store(memory, sweep, added := more)
            report = run(sweep, added.extend(points), how, console)
    return report


def prepare(here: Places, ledger: Ledger) -> None:
    """Make the folders of a sweep, and prove that it can write all that it must keep.

    Raises UserError naming `places.storage` or `places.ledger`.
    """
    places.prepare(here)
    stores.prove_writable(ledger.store)
    if is_url(here.kept):  # a folder was proven with the others
        stores.prove_writable(open_memory(here))


def _ready(planned: Plan) -> Plan:
    """Without the cells that wait for others: parts of an array are those of the whole grid."""
    return Plan(tuple(cell for cell in planned.cells if not cell.points[0].waits))


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _job(planned: PlannedCell, labels: Labels, mode: str, costs: Costs) -> Job:
    cell = modes.settled(planned.cell, mode)
    return Job(cell, labels, cpu=cell.config["resources"]["cpu"], facts=costs.facts(cell))


def _progress(
    sweep: Sweep, due: Sequence[PlannedCell], jobs: Sequence[Job], console: Console
) -> SweepProgress:
    names = {planned.cell.signature: planned.points[0].name for planned in due}
    epochs = {job.cell.signature: job.cell.config["epochs"] for job in jobs}
    estimates = {job.cell.signature: job.facts["estimate_seconds"] for job in jobs}
    return SweepProgress(console, names, TimeLeft.of(epochs, estimates), sweep.metric)


def _nothing_due(mine: Plan) -> Report:
    known = sum(planned.fails_again for planned in mine.cells)
    if known:
        return Report(FAILED, (_failed_before(known),))
    return Report(FINISHED, ("nothing to run: every cell is finished",))


def _report(mine: Plan, due: int, queue: JobQueue, progress: SweepProgress) -> Report:
    """Exit status and last lines: what failed outweighs what the budget left."""
    total, failed = len(mine.cells), len(queue.failed)
    known = sum(p.fails_again and p.cell.signature not in progress.names for p in mine.cells)
    finished = total - due - known + progress.done
    lines = [_failed_before(known)] if known else []
    so_far = f"{finished} of {total} cells are finished; the same command goes on"
    if not queue.is_exhausted:
        return Report(INTERRUPTED, (*lines, f"stopped: {so_far}"))
    if queue.left:
        lines.append(f"{queue.limits.why_left}: {so_far}")
    if failed:
        lines.append(f"{failed} of {total} cells failed; the table says why")
    if failed or known:
        return Report(FAILED, tuple(lines))
    if queue.left:
        return Report(UNFINISHED, tuple(lines))
    return Report(FINISHED, (f"all {total} cells are finished",))


def _failed_before(count: int) -> str:
    return (
        f"{count} cells failed before, in a way that the same code repeats; "
        "RETRY=failed runs them again"
    )
