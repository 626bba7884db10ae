"""Cells that other processes run: this sweep waits for them, and runs those that are abandoned."""

import time
from collections.abc import Iterator
from dataclasses import replace

from capsweep.ledger import lease
from capsweep.ledger.lease import LeaseMonitor
from capsweep.ledger.ledger import Entry, Ledger
from capsweep.sweep.job import Job

LOOK_SECONDS = 2.0  # between two looks


class Elsewhere:
    """Jobs whose cells other processes run."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.watch = ledger, LeaseMonitor()
        self._jobs: dict[str, Job] = {}
        self._looked = float("-inf")

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Wait for the cell of a job."""
        self._jobs[job.cell.signature] = job

    def pop_ended(self) -> Iterator[tuple[Job, Entry | None]]:
        """Remove and yield the jobs that ended elsewhere, each with its entry in the ledger, and
        those whose owner vanished, each with None: they are to be run here.

        The ledger is read every LOOK_SECONDS at most.
        """
        now = time.monotonic()
        if not self._jobs or now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        for signature, job in list(self._jobs.items()):
            entry = self.ledger.entry(signature)
            disk = self.ledger.disk
            claimed = None if disk is None else lease.read_claim(disk, signature)
            if entry.status in ("done", "failed"):
                del self._jobs[signature]
                yield job, entry
            elif claimed is None or self.watch.is_dead(claimed):
                del self._jobs[signature]
                yield replace(job, dead="" if claimed is None else claimed.sight), None
