"""The main job: plan, check, run what is due, and say what happened."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from capsweep.config import places
from capsweep.sweep import executors, plan
from capsweep.sweep.expand import Point
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.ledger import Ledger
from capsweep.sweep.plan import Plan, PlannedCell
from capsweep.sweep.progress import SweepProgress
from capsweep.sweep.spec import Sweep
from capsweep.training import wandb_mode
from capsweep.training.tracking import Labels

FINISHED, FAILED, INTERRUPTED = 0, 1, 130  # exit statuses; 2 is bad input


@dataclass(frozen=True)
class Report:
    """How the sweep ended: an exit status and one line."""

    status: int
    line: str


def run(sweep: Sweep, points: Sequence[Point], executor: str, console: Console) -> Report:
    """Run the cells that are due. All that can be wrong is found before an executor starts.

    Raises UserError naming key or file.
    """
    here = places.resolve(points[0].cell.config["places"])
    planned = plan.make(points, Ledger(here.ledger))
    places.prepare(here)
    plan.check_data(planned, here)
    if not planned.due:
        console.out(describe(sweep, planned), highlight=False)
        return Report(FINISHED, "nothing to run: every cell is finished")
    execute = executors.choose(executor)
    mode, reason = wandb_mode.settle(points[0].cell.config)
    console.out(f"{describe(sweep, planned)}\n{reason}", highlight=False)
    jobs = [_job(sweep, cell, mode) for cell in planned.due]
    with _progress(sweep, planned, console) as progress:
        execute(jobs, _WritingDown(Ledger(here.ledger), progress))
    return _report(planned, Ledger(here.ledger))


def describe(sweep: Sweep, planned: Plan) -> str:
    """The plan in a few words."""
    merged = f", {planned.equivalent} equivalent" if planned.equivalent else ""
    counts = ", ".join(f"{planned.count(s)} {s}" for s in ("done", "missing", "failed"))
    return f"{sweep.name}: {sweep.question}\n{len(planned.cells)} cells: {counts}{merged}"


def _job(sweep: Sweep, planned: PlannedCell, mode: str) -> Job:
    point = planned.points[0]
    labels = Labels(sweep.name, point.arm, point.name, sweep.question)
    return Job(wandb_mode.settled(planned.cell, mode), labels)


def _progress(sweep: Sweep, planned: Plan, console: Console) -> SweepProgress:
    names = {due.cell.signature: due.points[0].name for due in planned.due}
    epochs = {due.cell.signature: due.cell.config["epochs"] for due in planned.due}
    return SweepProgress(console, names, epochs, sweep.metric)


class _WritingDown:
    """Passes everything on, and writes failures down that a lost worker could not."""

    def __init__(self, ledger: Ledger, progress: SweepProgress) -> None:
        self.ledger, self.progress = ledger, progress
        self.started, self.epoch = progress.started, progress.epoch

    def ended(self, signature: str, outcome: Outcome) -> None:
        if outcome.cause is not None:
            self.ledger.note_failure(signature, outcome.cause)
        self.progress.ended(signature, outcome)


def _report(planned: Plan, ledger: Ledger) -> Report:
    after = [ledger.entry(due.cell.signature).status for due in planned.due]
    failed, missing = after.count("failed"), after.count("missing")
    if missing:
        done = len(planned.cells) - failed - missing
        line = (
            f"stopped: {done} of {len(planned.cells)} cells are finished; the same command goes on"
        )
        return Report(INTERRUPTED, line)
    if failed:
        return Report(FAILED, f"{failed} of {len(planned.cells)} cells failed; the table says why")
    return Report(FINISHED, f"all {len(planned.cells)} cells are finished")
