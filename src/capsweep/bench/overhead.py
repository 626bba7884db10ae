"""What a sweep costs beside training: the overhead of 40 cells of one training step each.

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

from capsweep.bench.measured import Measured, Report
from capsweep.bench.watched import Unknown, Watch, one_step_jobs
from capsweep.ledger.ledger import Ledger
from capsweep.sweep.executors import local
from capsweep.sweep.job import Job, run_job
from capsweep.sweep.queue import JobQueue

CELLS, SLOTS = 40, 2
NOTE = (
    "Cells of one step of eight digits and one test. Overhead: wall time of the whole sweep, less "
    "the time inside the cells' epochs shared out among the slots. local: one after the other in "
    f"this process, which ran a cell before; ray: a Ray of its own with {SLOTS} slots, its start "
    "and that of its workers included (`capsweep bench fixed_cost` leaves them out)."
)


def measure(cells: int = CELLS) -> Report:
    """Through the local executor and, where it is installed, Ray."""
    by_local = f"sweep of {cells} cells of one step, local: overhead"
    by_ray = f"sweep of {cells} cells of one step, ray: overhead"
    with tempfile.TemporaryDirectory() as folder:
        _locally(one_step_jobs(1, folder))  # imports
    measured = [Measured(by_local, _overhead("local", cells), "s")]
    if importlib.util.find_spec("ray") is None:
        measured.append(Measured(by_ray, None, "s", skipped="Ray is not installed"))
    else:
        measured.append(Measured(by_ray, _overhead("ray", cells), "s"))
    per_cell = [
        Measured(f"{found.what}, by cell", found.value / cells, "s")
        for found in measured
        if found.value is not None
    ]
    return Report([*measured, *per_cell], notes=[NOTE])


def _overhead(executor: str, cells: int) -> float:
    road, slots = ROADS[executor]
    print(f"sweep: {cells} cells, {executor}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        jobs = one_step_jobs(cells, folder)
        begun = time.monotonic()
        watch = road(jobs)
        wall = max(watch.ends().values()) - begun
    return wall - watch.trained / slots


def _locally(jobs: list[Job]) -> Watch:
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        queue = JobQueue(jobs, Ledger(folder), watch, Unknown({}))
        local.execute(queue, Path(folder))
    return watch


def _by_ray(jobs: list[Job]) -> Watch:
    from capsweep.bench import scheduling  # imports Ray

    return scheduling.run(jobs, Unknown({}), run_job, SLOTS)


ROADS: dict[str, tuple[Callable[[list[Job]], Watch], int]] = {
    "local": (_locally, 1),
    "ray": (_by_ray, SLOTS),
}
