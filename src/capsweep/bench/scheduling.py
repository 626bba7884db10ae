"""How much scheduling costs: many cells of simulated length on a Ray that declares GPUs it has not.

Time is counted from when every slot has begun its first cell; worker processes start before that.
"""

import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from capsweep.bench.measured import Measured
from capsweep.bench.watched import Unknown, Watch, cells_of, one_step_jobs
from capsweep.ledger.ledger import Ledger
from capsweep.sweep.executors import ray_tune
from capsweep.sweep.job import Job, OnEpoch, Outcome, run_job
from capsweep.sweep.placement import Capacity
from capsweep.sweep.queue import JobQueue
from capsweep.tracking.labels import Labels

SLOTS = 16
SHORTEST, LONGEST = 4.0, 8.0  # simulated seconds of a cell


def sleep(job: Job, on_epoch: OnEpoch) -> Outcome:
    """A cell that trains nothing and takes as long as it says."""
    time.sleep(job.facts["seconds"])
    return Outcome({"metrics": {}, "signature": job.cell.signature})


def makespan(cells: int = 1000, slots: int = SLOTS) -> list[Measured]:
    """Wall time over the ideal, and the driver's memory, for simulated cells."""
    lengths, simulated = random.Random(0), cells_of(cells)
    seconds = {cell.signature: lengths.uniform(SHORTEST, LONGEST) for cell in simulated}
    jobs = [
        Job(cell, Labels(), cpu=1, gpu=1, facts={"seconds": seconds[cell.signature]})
        for cell in simulated
    ]
    watch = run(jobs, Unknown(seconds), sleep, slots)
    starts, ends = watch.starts(), watch.ends()
    begun = sorted(starts.values())[slots - 1]
    before = sum(begun - at for at in starts.values() if at < begun)
    ideal = (sum(seconds.values()) - before) / slots
    wall = max(ends.values()) - begun
    resident = [moment.resident for moment in watch.moments]
    growth = (resident[-1] - resident[len(resident) // 10]) / 2**20
    return [
        Measured(
            f"makespan of {cells} cells on {slots} slots over the ideal", wall / ideal, "x", 1.15
        ),
        Measured("driver memory grown over the last nine tenths", growth, "MiB", 100),
    ]


def fixed_cost(cells: int = 24, slots: int = 2) -> list[Measured]:
    """Seconds of a slot per cell that fits one step with Lightning, in processes that are kept."""
    with tempfile.TemporaryDirectory() as folder:
        watch = run(one_step_jobs(cells, folder), Unknown({}), run_job, slots)
    begun = sorted(watch.ends().values())[slots - 1]  # the first cell of a process imports
    after = [end for end in watch.ends().values() if end > begun]
    seconds = (max(after) - begun) * slots / len(after)
    return [Measured("fixed cost of a cell of one step", seconds, "s", 1.0)]


def run(jobs: Sequence[Job], costs: Unknown, work: ray_tune.Work, slots: int) -> Watch:
    """Through the queue and the executor of every sweep, on a Ray of its own."""
    watch = Watch()
    declared = Capacity(cpu=slots, gpu=sum(job.gpu for job in jobs[:slots]))
    with tempfile.TemporaryDirectory() as folder:
        queue = JobQueue(jobs, Ledger(folder), watch, costs)
        ray_tune.execute(queue, Path(folder), work=work, declared=declared)
    return watch
