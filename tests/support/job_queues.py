"""Queues of a sweep without an executor: what a test draws from them, and reports to them."""

from collections.abc import Callable
from typing import Any

from capsweep.config.cell import Cell
from capsweep.ledger import causes
from capsweep.ledger.records import Measurement
from capsweep.sweep.estimates import Estimates
from capsweep.sweep.queue import JobQueue
from capsweep.training.run import Job, Outcome

GIB = 2**30
FINISHED = Outcome({"metrics": {}})
OUT_OF_MEMORY = Outcome(cause="OutOfMemoryError: CUDA out of memory")
NODE_MEMORY = Outcome(cause=causes.NODE_MEMORY)
LOST = Outcome(cause=f"{causes.LOST_WORKER}killed")


class RecordingListener:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.starts: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.ends: dict[str, Outcome] = {}
        self.messages: list[str] = []

    def on_start(self, signature: str, epochs: int) -> None:
        self.starts.append(signature)

    def on_epoch(self, signature: str, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def on_end(self, signature: str, outcome: Outcome) -> None:
        if outcome.paused:
            self.messages.append(outcome.paused)
        else:
            self.ends[signature] = outcome

    def on_message(self, signature: str, text: str) -> None:
        self.messages.append(text)


class DeclaredCosts(Estimates):
    """Costs as declared, by epochs."""

    def __init__(self, per_epoch: float | None) -> None:
        super().__init__(None)
        self.per_epoch = per_epoch

    def seconds(self, cell: Cell) -> float | None:
        return None if self.per_epoch is None else self.per_epoch * cell.config["epochs"]


def draw_job(queue: JobQueue) -> Job:
    """The next job, which must be there."""
    job = queue.next_job()
    assert job is not None
    return job


def start_job(queue: JobQueue) -> Job:
    """The next job, with a worker."""
    job = draw_job(queue)
    queue.on_start(job)
    return job


def lose_job(queue: JobQueue, outcome: Outcome, *epochs: int) -> Job:
    """The next job runs some epochs, and its worker is gone with `outcome`."""
    job = start_job(queue)
    for epoch in epochs:
        queue.on_epoch(job, {"epoch": epoch})
    queue.on_end(job, outcome)
    return job


def make_measurement(
    gibibytes: float, utilisation: float | None = None, device: float = 80, name: str = "s"
) -> Measurement:
    """A measurement of a cell that takes some GiB of a device."""
    return Measurement(
        shape=name,
        hardware="declared",
        seconds_per_step=0.1,
        evaluation_seconds_per_image=0.001,
        startup_seconds=1.0,
        peak_memory_bytes={"process": GIB, "gpu": int(gibibytes * GIB)},
        utilisation=utilisation,
        device_memory_bytes=int(device * GIB),
        steps=20,
    )


def measure_job(queue: JobQueue, gibibytes: float, utilisation: float | None = None) -> None:
    """The next job measures its shape on an 80 GiB GPU."""
    end_measuring(queue, start_job(queue), gibibytes, utilisation)


def end_measuring(
    queue: JobQueue, job: Job, gibibytes: float, utilisation: float | None = None
) -> None:
    """A job measured its shape on an 80 GiB GPU."""
    assert (job.is_calibration, job.gpu) == (True, 1)
    measurement = make_measurement(gibibytes, utilisation, name=job.cell.shape)
    queue.on_end(job, Outcome(measurement.model_dump()))


MakeQueue = Callable[..., tuple[JobQueue, RecordingListener]]
