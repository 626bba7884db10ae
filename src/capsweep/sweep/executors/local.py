"""In this process, one cell after the other, with neither Ray nor W&B needed.

SIGTERM, as of a job of Slurm that is preempted, is a notice: the cell leaves at its epoch's end.
"""

import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from capsweep.config import device_rules
from capsweep.sweep.cluster import LOCAL, Cluster
from capsweep.sweep.elsewhere import LOOK_SECONDS
from capsweep.sweep.executors import Source
from capsweep.sweep.job import Job, run_job
from capsweep.sweep.placement import Capacity
from capsweep.training.notice import Notice


def execute(source: Source, scratch: Path, cluster: Cluster = LOCAL) -> None:
    """Run jobs until there are no more; returns at Ctrl-C, and after SIGTERM."""
    source.opens(Capacity())
    notice = Notice()
    with notice.listening(), suppress(KeyboardInterrupt):
        while not source.is_exhausted and not notice.given:
            job = source.next()
            if job is None:
                time.sleep(LOOK_SECONDS)
                continue
            source.started(replace(job, gpu=max(job.gpu, _gpus(job))))  # what the bill counts
            source.ended(job, run_job(job, partial(_told, source, job), notice))


def _gpus(job: Job) -> float:
    """The whole GPUs that a cell has, since nothing else runs here."""
    from capsweep.training import devices  # it imports torch

    config = job.cell.config
    return device_rules.wanted(config) if devices.on_gpus(config) else 0


def _told(source: Source, job: Job, row: dict[str, Any]) -> bool:
    """Whether the job is to leave."""
    source.epoch(job, row)
    return source.limits.leaves
