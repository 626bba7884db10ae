"""In this process, one cell after the other, with neither Ray nor W&B needed."""

import time
from pathlib import Path

from capsweep.sweep.executors import Source
from capsweep.sweep.job import run_job
from capsweep.sweep.queue import LOOK_SECONDS, Capacity


def execute(source: Source, scratch: Path, address: str | None = None) -> None:
    """Run jobs until there are no more; returns at Ctrl-C."""
    source.opens(Capacity())
    try:
        while not source.is_exhausted:
            job = source.next()
            if job is None:
                time.sleep(LOOK_SECONDS)
                continue
            source.started(job)
            source.ended(job, run_job(job, lambda row, job=job: source.epoch(job, row)))
    except KeyboardInterrupt:
        return
