"""Queues of cells."""

from pathlib import Path

import pytest
from job_queues import DeclaredCosts, MakeQueue, RecordingListener

from capsweep.config import compose
from capsweep.ledger.ledger import Ledger
from capsweep.sweep.estimates import Limits
from capsweep.sweep.queue import JobQueue
from capsweep.tracking.content import Labels
from capsweep.training.run import Job


@pytest.fixture
def make_queue(tmp_path: Path) -> MakeQueue:
    """A queue of cells, given by their overrides."""

    def make(
        *cells: list[str], per_epoch: float | None = None, limits: Limits | None = None
    ) -> tuple[JobQueue, RecordingListener]:
        composed = [compose.cell([f"places.storage={tmp_path}", *cell]) for cell in cells]
        jobs = [Job(cell, Labels(), cell.config["resources"]["cpu"]) for cell in composed]
        ledger, listener = Ledger(tmp_path / "ledger"), RecordingListener()
        return JobQueue(
            jobs, ledger, listener, DeclaredCosts(per_epoch), limits or Limits()
        ), listener

    return make
