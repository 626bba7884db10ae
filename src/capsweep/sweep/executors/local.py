"""In this process, one cell after the other, with neither Ray nor W&B needed.

At SIGTERM, as of a job of Slurm that is preempted, the cell ends after its epoch.
"""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from capsweep.config import validation
from capsweep.sweep.executors import LOCAL, Cluster
from capsweep.sweep.gpu_packing import Capacity
from capsweep.sweep.job import Job, run_job
from capsweep.sweep.queue import LOOK_SECONDS, JobQueue
from capsweep.training.run_hooks import Row, RunHooks, StopFlag


def execute(queue: JobQueue, scratch: Path, cluster: Cluster = LOCAL) -> None:
    """Run jobs until there are no more; returns at Ctrl-C, and after SIGTERM."""
    queue.set_capacity(Capacity())
    stop_flag = StopFlag()
    with stop_flag.handling_sigterm(), suppress(KeyboardInterrupt):
        while not queue.is_exhausted and not stop_flag.is_set:
            job = queue.next_job()
            if job is None:
                time.sleep(LOOK_SECONDS)
                continue
            queue.on_start(replace(job, gpu=max(job.gpu, _count_gpus(job))))  # for the bill
            queue.on_end(job, run_job(job, _make_hooks(queue, job, stop_flag)))


def _count_gpus(job: Job) -> float:
    """The whole GPUs that a cell has, since nothing else runs here."""
    from capsweep.training import devices  # it imports torch

    config = job.cell.config
    return validation.count_requested_devices(config) if devices.on_gpus(config) else 0


def _make_hooks(queue: JobQueue, job: Job, stop_flag: StopFlag) -> RunHooks:
    def on_epoch(row: Row) -> bool:
        queue.on_epoch(job, row)
        return queue.limits.is_stopping

    return RunHooks(on_epoch=on_epoch, stop_flag=stop_flag)
