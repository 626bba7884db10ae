"""What a sweep costs beside training: planning, and the overhead of a cell.

Overhead is the wall time of the whole sweep, from its queue to its last result in the ledger, less
the ideal: the seconds that the cells were inside their epochs, by their own results, shared out
among the slots. So all else counts: composition of networks, Lightning's loop, claims, checkpoints,
the test, writing, and with Ray its start and that of its workers.
"""

import importlib.util
import tempfile
import time
from pathlib import Path

from capsweep.config import compose
from capsweep.lab.bench.machine import time_call
from capsweep.lab.bench.results import BenchReport, Measured
from capsweep.ledger.ledger import Ledger
from capsweep.sweep import choices, executors, expand, plan
from capsweep.sweep.estimates import Estimates
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.queue import JobQueue
from capsweep.sweep.resources import Capacity
from capsweep.tracking.labels import Labels

CELLS, SLOTS = 40, 2
QUICK = {"sweep": {"cells": 1, "seeds": 1}}


def measure_sweep(cells: int = CELLS, seeds: int = 200) -> BenchReport:
    """A plan, and sweeps by the local executor and, where it is installed, Ray."""
    measured = [_measure_plan(seeds)]
    with tempfile.TemporaryDirectory() as folder:
        _execute(make_jobs(1, folder), by_ray=False)  # imports
    measured += [_measure_overhead(cells, by_ray) for by_ray in (False, True)]
    return BenchReport(measured)


def _measure_plan(seeds: int) -> Measured:
    """The ablation, five places, with so many seeds."""
    sweep = choices.load_sweep("ablation", {"SEEDS": str(seeds)})
    with tempfile.TemporaryDirectory() as folder:
        seconds = time_call(lambda: plan.make_plan(expand.expand_sweep(sweep), Ledger(folder)))
    return Measured(f"plan of {5 * seeds:,} cells", seconds, "s", 10)


class EpochClock:
    """A listener that adds up how long cells were in their epochs, and notes the last end."""

    def __init__(self) -> None:
        self.trained = 0.0  # seconds, of all cells that ended
        self.ended_at = 0.0

    def ignore_event(self, *event: object, **named: object) -> None:
        """See SweepListener."""

    on_start = on_epoch = on_message = ignore_event

    def on_end(self, signature: str, outcome: Outcome) -> None:
        """Count the epochs of a cell."""
        if outcome.result is None:
            raise RuntimeError(f"{signature}: {outcome.cause}")
        self.trained += outcome.result.get("seconds", {}).get("fit", 0.0)
        self.ended_at = time.monotonic()


def make_jobs(count: int, folder: str) -> list[Job]:
    """Cells that fit one step with Lightning on eight digits, with their results in `folder`."""
    small = ["model=cnn_small", "epochs=1", "limit_batches=1", "batch_size=8", "logger=csv"]
    small += [f"places.storage={folder}", "trainer.accelerator=cpu", "resources.gpu=0"]
    return [Job(compose.cell([*small, f"seed={seed}"]), Labels(), cpu=1) for seed in range(count)]


def _execute(jobs: list[Job], by_ray: bool) -> EpochClock:
    """By the local executor, or by Ray's on a Ray of its own."""
    clock = EpochClock()
    with tempfile.TemporaryDirectory() as folder:
        queue = JobQueue(jobs, Ledger(folder), clock, Estimates(None))
        if by_ray:
            from capsweep.sweep.executors import ray_tune  # imports Ray

            ray_tune.execute(queue, Path(folder), declared=Capacity(cpu=SLOTS))
        else:
            executors.execute_locally(queue, Path(folder))
    return clock


def _measure_overhead(cells: int, by_ray: bool) -> Measured:
    what = f"overhead of a cell of one step, {'ray' if by_ray else 'local'}"
    if by_ray and importlib.util.find_spec("ray") is None:
        return Measured(what, None, "s", skipped="Ray is not installed")
    with tempfile.TemporaryDirectory() as folder:
        jobs = make_jobs(cells, folder)
        started = time.monotonic()
        clock = _execute(jobs, by_ray)
    overhead = clock.ended_at - started - clock.trained / (SLOTS if by_ray else 1)
    return Measured(what, overhead / cells, "s", 1.0)
