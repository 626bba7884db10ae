"""What a sweep costs beside training: planning, and the overhead of a cell.

Overhead is the wall time of the whole sweep, from its queue to its last result in the ledger, less
the ideal: the seconds that the cells were inside their epochs, by their own results, shared out
among the slots. So all else counts: composition of networks, Lightning's loop, claims, checkpoints,
the test, writing, and with Ray its start and that of its workers.
"""

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from capsweep.bench.machine import time_call
from capsweep.bench.results import BenchReport, Measured
from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.ledger.ledger import Ledger
from capsweep.sweep import choices, expand, plan
from capsweep.sweep.choices import Choices
from capsweep.sweep.executors import local
from capsweep.sweep.gpu_packing import Capacity
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.queue import JobQueue
from capsweep.tracking.labels import Labels

CELLS, SLOTS = 40, 2
NOTE = (
    "Cells of one step of eight digits and one test. Overhead: wall time of the whole sweep, less "
    "the time inside the cells' epochs shared out among the slots, by cell. local: one after the "
    f"other in this process, which ran a cell before; ray: a Ray of its own with {SLOTS} slots, "
    "its start and that of its workers included."
)


def measure_sweep(cells: int = CELLS, seeds: int = 200) -> BenchReport:
    """A plan, and sweeps by the local executor and, where it is installed, Ray."""
    measured = [_measure_plan(seeds)]
    with tempfile.TemporaryDirectory() as folder:
        run_locally(make_jobs(1, folder))  # imports
    measured.append(_measure_overhead("local", run_locally, cells, 1))
    if importlib.util.find_spec("ray") is None:
        what = "overhead of a cell of one step, ray"
        measured.append(Measured(what, None, "s", skipped="Ray is not installed"))
    else:
        measured.append(_measure_overhead("ray", run_by_ray, cells, SLOTS))
    return BenchReport(measured, notes=[NOTE])


def _measure_plan(seeds: int) -> Measured:
    """The ablation, five places, with so many seeds."""
    sweep = choices.load_sweep("ablation", Choices(seeds=str(seeds)))
    with tempfile.TemporaryDirectory() as folder:
        seconds = time_call(lambda: plan.make_plan(expand.expand_sweep(sweep), Ledger(folder)))
    return Measured(f"plan of {5 * seeds:,} cells", seconds, "s", 10)


class UnknownCosts:
    """Costs of which nothing is known."""

    def seconds(self, cell: Cell) -> float | None:
        """Unknown."""

    def add(self, result: dict[str, Any]) -> None:
        """Nothing is learned."""


class EpochClock:
    """A listener that adds up how long cells were in their epochs, and notes the last end."""

    def __init__(self) -> None:
        self.trained = 0.0  # seconds, of all cells that ended
        self.ended_at = 0.0

    def on_start(self, signature: str) -> None:
        """See SweepListener."""

    def on_epoch(self, signature: str, row: dict[str, Any]) -> None:
        """See SweepListener."""

    def on_message(self, signature: str, text: str) -> None:
        """See SweepListener."""

    def on_end(self, signature: str, outcome: Outcome) -> None:
        """See SweepListener."""
        if outcome.result is None:
            raise RuntimeError(f"{signature}: {outcome.cause}")
        self.trained += outcome.result.get("seconds", {}).get("fit", 0.0)
        self.ended_at = time.monotonic()


def make_jobs(count: int, folder: str) -> list[Job]:
    """Cells that fit one step with Lightning on eight digits, with their results in `folder`."""
    small = ["model=cnn_small", "epochs=1", "limit_batches=1", "batch_size=8", "logger=csv"]
    small += [f"places.storage={folder}", "trainer.accelerator=cpu", "resources.gpu=0"]
    return [Job(compose.cell([*small, f"seed={seed}"]), Labels(), cpu=1) for seed in range(count)]


def run_locally(jobs: list[Job]) -> EpochClock:
    """By the local executor."""
    clock = EpochClock()
    with tempfile.TemporaryDirectory() as folder:
        local.execute(JobQueue(jobs, Ledger(folder), clock, UnknownCosts()), Path(folder))
    return clock


def run_by_ray(jobs: list[Job]) -> EpochClock:
    """By Ray's executor, on a Ray of its own."""
    from capsweep.sweep.executors import ray_tune  # imports Ray

    clock, capacity = EpochClock(), Capacity(cpu=SLOTS)
    with tempfile.TemporaryDirectory() as folder:
        queue = JobQueue(jobs, Ledger(folder), clock, UnknownCosts())
        ray_tune.execute(queue, Path(folder), declared=capacity)
    return clock


def _measure_overhead(
    name: str, execute: Callable[[list[Job]], EpochClock], cells: int, slots: int
) -> Measured:
    print(f"sweep: {cells} cells, {name}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        jobs = make_jobs(cells, folder)
        started = time.monotonic()
        clock = execute(jobs)
    overhead = clock.ended_at - started - clock.trained / slots
    return Measured(f"overhead of a cell of one step, {name}", overhead / cells, "s", 1.0)
