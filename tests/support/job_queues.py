"""Queues of a sweep without an executor: what a test draws from them, and tells them."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from capsweep.config.cell import Cell
from capsweep.config.shape import shape
from capsweep.ledger import causes
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.queue import JobQueue
from capsweep.training.size import Measurement

GIB = 2**30
FINISHED = Outcome({"metrics": {}})
OUT_OF_MEMORY = Outcome(cause="OutOfMemoryError: CUDA out of memory")
NODE_MEMORY = Outcome(cause=causes.NODE_MEMORY)
LOST = Outcome(cause=causes.describe_loss("killed"))


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.ends: dict[str, Outcome] = {}
        self.words: list[str] = []

    def started(self, signature: str) -> None: ...

    def epoch(self, signature: str, row: dict[str, Any]) -> None: ...

    def ended(self, signature: str, outcome: Outcome) -> None:
        self.ends[signature] = outcome

    def said(self, signature: str, what: str) -> None:
        self.words.append(what)


class Known:
    """Costs as declared, by epochs."""

    def __init__(self, per_epoch: float | None) -> None:
        self.per_epoch = per_epoch

    def seconds(self, cell: Cell) -> float | None:
        return None if self.per_epoch is None else self.per_epoch * cell.config["epochs"]

    def add(self, result: dict[str, Any]) -> None: ...


def draw(queue: JobQueue) -> Job:
    """The next job, which must be there."""
    job = queue.next()
    assert job is not None
    return job


def lose(queue: JobQueue, outcome: Outcome, *epochs: int) -> Job:
    """The next job runs some epochs, and its worker is gone with `outcome`."""
    job = draw(queue)
    queue.started(job)
    for epoch in epochs:
        queue.epoch(job, {"epoch": epoch})
    queue.ended(job, outcome)
    return job


def measurement(job: Job, gibibytes: float, utilisation: float | None = None) -> Outcome:
    """What measuring a job on an 80 GiB GPU may give."""
    return Outcome(
        asdict(
            Measurement(
                shape=shape(job.cell),
                hardware="declared",
                seconds_per_step=0.1,
                evaluation_seconds_per_image=0.001,
                startup_seconds=1.0,
                peak_memory_bytes={"process": GIB, "gpu": int(gibibytes * GIB)},
                utilisation=utilisation,
                device_memory_bytes=80 * GIB,
                steps=20,
            )
        )
    )


Make = Callable[..., tuple[JobQueue, Heard]]
