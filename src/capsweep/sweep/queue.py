"""The queue of a sweep: which job starts next, and what becomes of one that ended.

Retries, bounds of time and GPU time, cells that other drivers run, and measuring before packing are
decided here, for every executor alike.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from capsweep.config.cell import Cell
from capsweep.ledger import causes
from capsweep.ledger.causes import CauseKind
from capsweep.ledger.ledger import Ledger
from capsweep.sweep import placement
from capsweep.sweep.elsewhere import Elsewhere
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.limits import Limits
from capsweep.sweep.listener import Listener
from capsweep.sweep.losses import Losses
from capsweep.sweep.placement import Capacity
from capsweep.sweep.sharing import Sharing


class Costs(Protocol):
    """What cells will take."""

    def seconds(self, cell: Cell) -> float | None: ...

    def add(self, result: dict[str, Any]) -> None: ...


class JobQueue:
    """The due cells, longest first; a Source of jobs for an executor.

    limits: what the command may take, this queue and earlier ones together.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        ledger: Ledger,
        listener: Listener,
        costs: Costs,
        limits: Limits | None = None,
    ) -> None:
        self.ledger, self.listener, self.costs = ledger, listener, costs
        self.limits = limits or Limits()
        self.capacity = Capacity()
        self.sharing = Sharing()
        self.failed: dict[str, str] = {}
        self._pending = sorted(jobs, key=lambda job: -(costs.seconds(job.cell) or 0.0))
        self._running: dict[str, Job] = {}
        self._elsewhere = Elsewhere(ledger)
        self._begun: dict[str, float] = {}  # when a worker took the job; not yet: it waits
        self._done: dict[str, float] = {}  # of a cell's epochs, the fraction that is trained
        self._losses = Losses()

    @property
    def left(self) -> int:
        """Cells that were not started."""
        cells = [key for key, job in self._running.items() if not job.measures]
        waiting = [key for key in cells if not self.limits.has_begun(key)]
        return len(self._pending) + len(self._elsewhere) + len(waiting)

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing will ever come again."""
        if self.limits.leaves:  # a node that is waited for may never come
            return not any(map(self.limits.has_begun, self._running))
        waits = self._elsewhere or any(
            key in self._begun or not self.capacity.lacks(job) for key, job in self._running.items()
        )
        return not (waits or any(map(self._may_start, self._pending)))

    def opens(self, capacity: Capacity) -> None:
        """The executor is ready, and can run so much at once, or may grow to it.

        Raises ConfigError at first, naming the key, for a cell that no node can hold; once the
        sweep runs, such a cell waits for the node that was lost.
        """
        if self.capacity == Capacity():
            placement.check(self._pending, capacity)
        self.capacity = capacity

    def next(self) -> Job | None:
        """The job to start now; None when there is none at the moment."""
        self._look_elsewhere()
        large = self._large_that_waits()
        for waiting in self._pending:
            job = self.sharing.prepare(waiting, self.capacity)
            if job is None:
                continue
            if not self._starts(job, large):
                if not job.measures and job.gpu > 1 and (large is None or job.gpu > large.gpu):
                    large = job if self._is_allowed(job) else large
                continue
            if job.measures:
                self.sharing.begins(job)
            else:
                self._pending.remove(waiting)
            self._running[_key(job)] = job
            return job
        return None

    def started(self, job: Job) -> None:
        """An executor's worker took the job."""
        self._begun[_key(job)] = time.monotonic()
        self.limits.begins(_key(job), job.gpu)
        if job.measures:
            self.sharing.started(job)
        else:
            self.listener.started(job.cell.signature)

    def refused(self, job: Job) -> None:
        """A job has no worker any more, until it starts again on another node."""
        self.limits.ends(_key(job))
        self._begun.pop(_key(job), None)

    def epoch(self, job: Job, row: dict[str, Any]) -> None:
        """A job finished an epoch."""
        self._done[job.cell.signature] = (row["epoch"] + 1) / job.cell.config["epochs"]
        self._losses.row(job.cell.signature, row)
        self.listener.epoch(job.cell.signature, row)

    def ended(self, job: Job, outcome: Outcome) -> None:
        """A job ended, well or not. It may be put back."""
        if self._running.pop(_key(job), None) is None:
            return  # told twice: a worker that was lost after its last word
        self.refused(job)
        if outcome.stop_reason is not None:
            self.limits.refuse_more(outcome.stop_reason)
        if outcome.left:
            self._put_back(job, outcome)
        elif job.measures:
            self._measured(job, outcome)
        elif outcome.elsewhere is not None:
            self.listener.said(job.cell.signature, outcome.elsewhere)
            self._elsewhere.add(job)
        elif outcome.cause is None:
            self._settle(job.cell.signature, outcome)
        elif again := self._again(job, outcome.cause):
            self._pending.insert(0, again)
        elif causes.is_loss(outcome.cause):
            self._lost(job, outcome.cause)
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

    def _put_back(self, job: Job, outcome: Outcome) -> None:
        """A job that ended and did not fail waits again; of a measurement the cell waits still."""
        if job.measures:
            self.sharing.again(job)
        else:
            self._pending.insert(0, job)
            self.listener.ended(job.cell.signature, outcome)

    def _lost(self, job: Job, cause: str) -> None:
        """No failure, as long as the cell gets on from one lost worker to the next."""
        signature = job.cell.signature
        if (why := self._losses.lost(signature, cause)) is not None:
            self._settle(signature, Outcome(cause=why))
            return
        self.listener.said(signature, f"{cause}; goes on from its last checkpoint")
        self._pending.insert(0, replace(job, dead=""))

    def _again(self, job: Job, cause: str) -> Job | None:
        """The job as it is to be tried again, None when that cannot help."""
        if causes.kind_of_cause(cause) != CauseKind.OUT_OF_MEMORY:
            return None
        larger = self.sharing.larger(job, self.capacity.largest_cpu)
        if larger is not None:
            self.listener.said(job.cell.signature, f"{cause}; once more with a larger share")
        return larger

    def _measured(self, job: Job, outcome: Outcome) -> None:
        if outcome.cause is None:
            self.sharing.measured(job, outcome.result or {}, self.capacity)
            return
        signature, is_lost = (
            job.cell.signature,
            causes.kind_of_cause(outcome.cause) == CauseKind.LOST,
        )
        if is_lost and self._losses.lost(_key(job), outcome.cause) is None:
            self.listener.said(signature, f"{outcome.cause}; measured once more")
            self.sharing.again(job)
            return
        self.listener.said(signature, f"could not be measured: {outcome.cause}; takes a whole GPU")
        self.sharing.unmeasurable(job)

    def _look_elsewhere(self) -> None:
        for job, entry in self._elsewhere.pop_ended():
            if entry is None:
                self._pending.append(job)
            else:
                self._settle(job.cell.signature, Outcome(entry.result, entry.cause))

    def _may_start(self, waiting: Job) -> bool:
        """Whether the bounds let a cell start now, with what it is to be given."""
        job = self.sharing.prepare(waiting, self.capacity)
        return job is None or self._is_allowed(job)

    def _is_allowed(self, job: Job) -> bool:
        """Whether the bounds of the command let a job start now."""
        running = [one for one in self._running.values() if one.gpu > 0]
        ahead = sum((self._seconds_left(one) or 0.0) * one.gpu for one in running)
        return self.limits.allows(self.costs.seconds(job.cell), job.gpu, ahead)

    def _starts(self, job: Job, large: Job | None) -> bool:
        """Whether a job is handed to the executor. Within bounds none may wait inside it, where it
        would start too late; nor one of several devices, which smaller ones would overtake.
        """
        running = list(self._running.values())
        at_once = self.limits.starts_little or job.gpu > 1
        if not self._is_allowed(job) or (
            at_once and not placement.has_room(job, running, self.capacity)
        ):
            return False
        left = self._seconds_left
        return large is None or not placement.held_back(job, large, running, self.capacity, left)

    def _large_that_waits(self) -> Job | None:
        """The job of most devices that was handed to the executor and has no worker yet: there are
        GPUs enough, but not on one node.
        """
        waiting = [job for key, job in self._running.items() if key not in self._begun]
        return max((job for job in waiting if job.gpu > 1), key=lambda job: job.gpu, default=None)

    def _seconds_left(self, job: Job) -> float | None:
        """Estimated, of a job that runs or is to run; a measurement's is not known."""
        whole = None if job.measures else self.costs.seconds(job.cell)
        if whole is None or _key(job) not in self._begun:
            return whole
        by_epochs = whole * (1 - self._done.get(job.cell.signature, 0.0))
        by_clock = whole - (time.monotonic() - self._begun[_key(job)])
        return max(0.0, min(by_epochs, by_clock) if by_clock > 0 else by_epochs)


def _key(job: Job) -> str:
    return f"measure {job.kind} {job.cell.signature}" if job.measures else job.cell.signature
