"""Queues of cells."""

from pathlib import Path

import pytest
from job_queues import Heard, Known, Make

from capsweep.config import compose
from capsweep.ledger.ledger import Ledger
from capsweep.sweep.job import Job
from capsweep.sweep.limits import Bounds, Limits
from capsweep.sweep.queue import JobQueue
from capsweep.tracking.labels import Labels


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A queue of cells, given by their overrides."""

    def queue(
        *cells: list[str], per_epoch: float | None = None, budget: float | None = None
    ) -> tuple[JobQueue, Heard]:
        composed = [compose.cell([f"places.storage={tmp_path}", *cell]) for cell in cells]
        jobs = [Job(cell, Labels(), cell.config["resources"]["cpu"]) for cell in composed]
        heard = Heard()
        ledger, limits = Ledger(tmp_path / "ledger"), Limits(Bounds(budget=budget))
        return JobQueue(jobs, ledger, heard, Known(per_epoch), limits), heard

    return queue
