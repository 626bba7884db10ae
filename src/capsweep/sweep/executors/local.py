"""In this process, one cell after the other, with neither Ray nor W&B needed.

At SIGTERM, as of a job of Slurm that is preempted, the cell ends after its epoch.
"""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from capsweep.config import validation
from capsweep.sweep.cluster import LOCAL, Cluster
from capsweep.sweep.elsewhere import LOOK_SECONDS
from capsweep.sweep.executors import Source
from capsweep.sweep.job import Job, run_job
from capsweep.sweep.placement import Capacity
from capsweep.training.run_hooks import Row, RunHooks, StopFlag


def execute(source: Source, scratch: Path, cluster: Cluster = LOCAL) -> None:
    """Run jobs until there are no more; returns at Ctrl-C, and after SIGTERM."""
    source.opens(Capacity())
    stop_flag = StopFlag()
    with stop_flag.handling_sigterm(), suppress(KeyboardInterrupt):
        while not source.is_exhausted and not stop_flag.is_set:
            job = source.next()
            if job is None:
                time.sleep(LOOK_SECONDS)
                continue
            source.started(replace(job, gpu=max(job.gpu, _gpus(job))))  # what the bill counts
            source.ended(job, run_job(job, _make_hooks(source, job, stop_flag)))


def _gpus(job: Job) -> float:
    """The whole GPUs that a cell has, since nothing else runs here."""
    from capsweep.training import devices  # it imports torch

    config = job.cell.config
    return validation.count_requested_devices(config) if devices.on_gpus(config) else 0


def _make_hooks(source: Source, job: Job, stop_flag: StopFlag) -> RunHooks:
    def on_epoch(row: Row) -> bool:
        source.epoch(job, row)
        return source.limits.leaves

    return RunHooks(on_epoch=on_epoch, stop_flag=stop_flag)
