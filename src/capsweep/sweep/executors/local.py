"""In this process, one cell after the other, with neither Ray nor W&B needed."""

from collections.abc import Sequence

from capsweep.sweep.executors import Listener
from capsweep.sweep.job import Job, run_job


def execute(jobs: Sequence[Job], listener: Listener) -> None:
    """Run the jobs in order; returns at Ctrl-C."""
    try:
        for job in jobs:
            signature = job.cell.signature
            listener.started(signature)
            outcome = run_job(job, lambda row, signature=signature: listener.epoch(signature, row))
            listener.ended(signature, outcome)
    except KeyboardInterrupt:
        return
