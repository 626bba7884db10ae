"""The queue of a sweep: which job starts next, and what becomes of one that ended.

Retries, the time budget, cells that other drivers run, and measuring before packing are decided
here, for every executor alike.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from capsweep.config.cell import Cell
from capsweep.ledger import causes, claim
from capsweep.ledger.causes import Kind
from capsweep.ledger.claim import Watch
from capsweep.ledger.ledger import Ledger
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.sharing import Sharing

LOST_WORKER_RETRIES = 2
LOOK_SECONDS = 2.0  # between two looks at cells that run elsewhere


class Listener(Protocol):
    """Is told about cells by their signature."""

    def started(self, signature: str) -> None: ...

    def epoch(self, signature: str, row: dict[str, Any]) -> None: ...

    def ended(self, signature: str, outcome: Outcome) -> None: ...

    def said(self, signature: str, what: str) -> None:
        """Something a person should know: a retry, another driver."""
        ...


class Costs(Protocol):
    """What cells will take."""

    def seconds(self, cell: Cell) -> float | None: ...

    def add(self, result: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Capacity:
    """What an executor can run at once. One cell after the other: one CPU slot, no GPU."""

    cpu: float = 1
    gpu: float = 0


class JobQueue:
    """The due cells, longest first; a Source of jobs for an executor.

    deadline: seconds of time.monotonic() by which every started cell must have ended, None: any.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        ledger: Ledger,
        listener: Listener,
        costs: Costs,
        deadline: float | None = None,
    ) -> None:
        self.ledger, self.listener, self.costs, self.deadline = ledger, listener, costs, deadline
        self.capacity = Capacity()
        self.sharing = Sharing()
        self.failed: dict[str, str] = {}
        self._pending = sorted(jobs, key=self._longest_first)
        self._running: dict[str, Job] = {}
        self._elsewhere: dict[str, Job] = {}
        self._lost: dict[str, int] = {}
        self._watch, self._looked = Watch(), float("-inf")

    @property
    def left(self) -> int:
        """Cells that were not started."""
        return len(self._pending) + len(self._elsewhere)

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing will ever come again."""
        waits = self._running or self._elsewhere
        return not waits and not any(self._ends_in_time(job) for job in self._pending)

    def opens(self, capacity: Capacity) -> None:
        """The executor is ready, and can run so much at once."""
        self.capacity = capacity

    def next(self) -> Job | None:
        """The job to start now; None when there is none at the moment."""
        self._look_elsewhere()
        for waiting in self._pending:
            job = self.sharing.prepare(waiting, self.capacity.gpu)
            if job is None or not self._ends_in_time(waiting) or not self._has_room(job):
                continue
            if not job.measures:
                self._pending.remove(waiting)
            self._running[_key(job)] = job
            return job
        return None

    def started(self, job: Job) -> None:
        """An executor's worker took the job."""
        if not job.measures:
            self.listener.started(job.cell.signature)

    def epoch(self, job: Job, row: dict[str, Any]) -> None:
        """A job finished an epoch."""
        self.listener.epoch(job.cell.signature, row)

    def ended(self, job: Job, outcome: Outcome) -> None:
        """A job ended, well or not. It may be put back."""
        if self._running.pop(_key(job), None) is None:
            return  # told twice: a worker that was lost after its last word
        if job.measures:
            self._measured(job, outcome)
        elif outcome.elsewhere is not None:
            self.listener.said(job.cell.signature, outcome.elsewhere)
            self._elsewhere[job.cell.signature] = job
        elif outcome.cause is not None and (again := self._again(job, outcome.cause)):
            self._pending.insert(0, again)
        else:
            self._settle(job.cell.signature, outcome)

    def _settle(self, signature: str, outcome: Outcome) -> None:
        if outcome.cause is not None:
            self.failed[signature] = outcome.cause
            try:
                self.ledger.note_failure(signature, outcome.cause)
            except OSError as error:
                self.listener.said(signature, f"its failure could not be written down: {error}")
        if outcome.result is not None:
            self.costs.add(outcome.result)
        self.listener.ended(signature, outcome)

    def _again(self, job: Job, cause: str) -> Job | None:
        """The job as it is to be tried again, None when that cannot help."""
        kind, signature = causes.kind(cause), job.cell.signature
        if kind == Kind.LOST and self._lost.get(signature, 0) < LOST_WORKER_RETRIES:
            self._lost[signature] = self._lost.get(signature, 0) + 1
            self.listener.said(signature, f"{cause}; goes on from its last checkpoint")
            return replace(job, dead=0)
        if kind == Kind.OUT_OF_MEMORY:
            larger = self.sharing.larger(job, self.capacity.cpu)
            if larger is not None:
                self.listener.said(signature, f"{cause}; once more with a larger share")
            return larger
        return None

    def _measured(self, job: Job, outcome: Outcome) -> None:
        if outcome.cause is None:
            self.sharing.measured(job, outcome.result or {})
            return
        signature = job.cell.signature
        self.listener.said(signature, f"could not be measured: {outcome.cause}; takes a whole GPU")
        self.sharing.unmeasurable(job)

    def _look_elsewhere(self) -> None:
        now = time.monotonic()
        if not self._elsewhere or now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        for signature, job in list(self._elsewhere.items()):
            entry = self.ledger.entry(signature)
            disk = self.ledger.disk
            claimed = None if disk is None else claim.read(disk, signature)
            if entry.status in ("done", "failed"):
                del self._elsewhere[signature]
                self._settle(signature, Outcome(entry.result, entry.cause))
            elif claimed is None or self._watch.is_dead(claimed):
                del self._elsewhere[signature]
                dead = 0 if claimed is None else claimed.generation
                self._pending.append(replace(job, dead=dead))

    def _ends_in_time(self, job: Job) -> bool:
        if self.deadline is None:
            return True
        seconds = self.costs.seconds(job.cell)
        return seconds is not None and time.monotonic() + seconds <= self.deadline

    def _has_room(self, job: Job) -> bool:
        """With a deadline no job may wait inside the executor, where it would start too late."""
        if self.deadline is None:
            return True
        cpu = sum(running.cpu for running in self._running.values()) + job.cpu
        gpu = sum(running.gpu for running in self._running.values()) + job.gpu
        return not self._running or (cpu <= self.capacity.cpu and gpu <= self.capacity.gpu)

    def _longest_first(self, job: Job) -> float:
        return -(self.costs.seconds(job.cell) or 0.0)


def _key(job: Job) -> str:
    return f"{'measure ' if job.measures else ''}{job.cell.signature}"
