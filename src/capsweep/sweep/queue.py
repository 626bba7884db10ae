"""The queue of a sweep: which job starts next, and what becomes of one that ended.

Retries, bounds of time and GPU time, cells that other processes run, and measuring before packing
are decided here, for every executor alike.
"""

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from capsweep.ledger import causes, lease
from capsweep.ledger.causes import CauseKind
from capsweep.ledger.lease import LeaseMonitor
from capsweep.ledger.ledger import Ledger
from capsweep.sweep.estimates import Estimates
from capsweep.sweep.job import Capacity, GpuSharing, Job, Outcome
from capsweep.sweep.limits import Limits

LOOK_SECONDS = 2.0  # between two looks at cells that other processes run
FRUITLESS = 3  # losses in a row without an advanced checkpoint, after which a cell has failed


class SweepListener(Protocol):
    """Callbacks of a sweep's progress; cells are named by their signatures."""

    def on_start(self, signature: str) -> None: ...

    def on_epoch(self, signature: str, row: dict[str, Any]) -> None: ...

    def on_end(self, signature: str, outcome: Outcome) -> None: ...

    def on_message(self, signature: str, text: str) -> None: ...


class RestartPolicy:
    """Whether a cell whose worker was lost is tried again: for as long as it advances.

    It does if a worker begins at a later epoch than every one before: spot nodes may then take it
    any number of times. Otherwise the cell may end its workers, or its epochs may be longer than
    its nodes live.
    """

    def __init__(self) -> None:
        # Where each worker of a cell began: the first epoch that it finished; -1: none.
        self._first_epochs: dict[str, list[int]] = defaultdict(lambda: [-1])
        self.last_epochs: dict[str, int] = {}  # that a cell finished

    def add_epoch(self, key: str, row: dict[str, Any]) -> None:
        """Note that a cell finished an epoch."""
        self.last_epochs[key] = row["epoch"]
        if self._first_epochs[key][-1] < 0:
            self._first_epochs[key][-1] = row["epoch"]

    def add_lost_worker(self, key: str, cause: str) -> str | None:
        """A worker was lost: the cause of the cell's failure, or None to try the cell again."""
        first_epochs, latest = self._first_epochs[key], max(self._first_epochs[key])
        lost = len(first_epochs)
        fruitless = lost - 1 - first_epochs.index(latest) if latest > 0 else lost
        first_epochs.append(-1)  # of the next worker
        if fruitless < FRUITLESS:
            return None
        why = cause.removeprefix(causes.describe_lost_worker(""))
        return causes.describe_lost_worker(
            f"{why}; {lost} workers were lost, the last {fruitless} without a newer checkpoint "
            "than before: the cell may take its worker with it, or its epochs may be longer than "
            "its nodes live"
        )


class JobQueue:
    """The due cells as an executor draws them: those of unknown length, then the longest first.

    limits: of the command, for this queue and earlier ones together.
    """

    ENDED = ("done", "failed")  # in the ledger: what runs no more here

    def __init__(
        self,
        jobs: Sequence[Job],
        ledger: Ledger,
        listener: SweepListener,
        costs: Estimates,
        limits: Limits | None = None,
    ) -> None:
        self.ledger, self.listener, self.costs = ledger, listener, costs
        self.limits = limits or Limits()
        self.capacity = Capacity()
        self.sharing = GpuSharing()
        self.failed: dict[str, str] = {}
        self._pending = sorted(jobs, key=lambda job: -(costs.seconds(job.cell) or math.inf))
        self._running: dict[str, Job] = {}
        self._awaited: dict[str, Job] = {}  # whose cells other processes run
        self._last_look = float("-inf")  # at these
        self._monitor = LeaseMonitor()
        self._restarts = RestartPolicy()

    @property
    def count_left(self) -> int:
        """The number of cells that were not started."""
        cells = [key for key, job in self._running.items() if not job.measures]
        waiting = [key for key in cells if not self.limits.has_begun(key)]
        return len(self._pending) + len(self._awaited) + len(waiting)

    @property
    def is_exhausted(self) -> bool:
        """Whether no other job will ever start."""
        if self.limits.is_stopping:  # a node that is waited for may never come
            return not any(map(self.limits.has_begun, self._running))
        if self._running or self._awaited:
            return False
        jobs = (self.sharing.prepare_job(job, self.capacity) for job in self._pending)
        return not any(job is None or self._may_start(job) for job in jobs)

    def set_capacity(self, capacity: Capacity) -> None:
        """The executor is ready, or its cluster has changed.

        Raises ConfigError at first, naming the key, for a cell that no node can hold; once the
        sweep runs, such a cell waits for the node that was lost.
        """
        if self.capacity == Capacity():
            capacity.check_fits(self._pending)
        self.capacity = capacity

    def next_job(self) -> Job | None:
        """The job to start now; None when there is none at the moment."""
        self._collect_awaited()
        needed = self._estimate_gpu_seconds()
        for waiting in self._pending:
            job = self.sharing.prepare_job(waiting, self.capacity)
            if job is None or not self._may_start(job, needed):
                continue
            if job.measures:
                self.sharing.begin_measuring(job)
            else:
                self._pending.remove(waiting)
            self._running[_key(job)] = job
            return job
        return None

    def on_start(self, job: Job) -> None:
        """A worker has the job."""
        self.limits.begin(_key(job), job.gpu)
        if not job.measures:
            self.listener.on_start(job.cell.signature)

    def on_epoch(self, job: Job, row: dict[str, Any]) -> None:
        """A job finished an epoch."""
        self._restarts.add_epoch(_key(job), row)
        self.listener.on_epoch(job.cell.signature, row)

    def on_end(self, job: Job, outcome: Outcome) -> None:
        """A job ended, well or not. It may be put back."""
        if self._running.pop(_key(job), None) is None:
            return  # reported twice: a worker that was lost after its last report
        self.limits.end(_key(job))
        if outcome.ends_sweep:
            self.limits.refuse_more(outcome.paused)
        if outcome.elsewhere is not None:
            self.listener.on_end(job.cell.signature, outcome)
            self._awaited[job.cell.signature] = job
        elif job.measures:
            self._end_measuring(job, outcome)
        elif outcome.paused:
            self._pending.insert(0, job)
            self.listener.on_end(job.cell.signature, outcome)
        elif outcome.cause is None or not self._restart(job, outcome.cause):
            self._settle(job.cell.signature, outcome)

    def _settle(self, signature: str, outcome: Outcome) -> None:
        if outcome.cause is not None:
            self.failed[signature] = outcome.cause
            try:
                self.ledger.note_failure(signature, outcome.cause)
            except OSError as error:
                text = f"its failure could not be written down: {error}"
                self.listener.on_message(signature, text)
        if outcome.result is not None:
            self.costs.add(outcome.result)
        self.listener.on_end(signature, outcome)

    def _restart(self, job: Job, cause: str) -> bool:
        """Whether a failed job is tried again, or its failure is noted as that of a lost worker."""
        signature = job.cell.signature
        if causes.kind_of_cause(cause) == CauseKind.OUT_OF_MEMORY:
            larger = self.sharing.enlarge_share(job, self.capacity.largest_cpu)
            if larger is not None:
                self.listener.on_message(signature, f"{cause}; once more with a larger share")
                self._pending.insert(0, larger)
                return True
        if not causes.is_lost_worker(cause):
            return False
        if (why := self._restarts.add_lost_worker(signature, cause)) is not None:
            self._settle(signature, Outcome(cause=why))
        else:
            last = self._restarts.last_epochs.get(signature)
            after = "" if last is None else f" (epoch {last} was finished)"
            text = f"{cause}; goes on from its last checkpoint{after}"
            self.listener.on_message(signature, text)
            self._pending.insert(0, replace(job, dead=""))
        return True

    def _end_measuring(self, job: Job, outcome: Outcome) -> None:
        cause = outcome.cause
        if outcome.paused:
            self.sharing.retry_measuring(job)
        elif cause is None:
            self.sharing.add_measurement(job, outcome.result)
        elif (
            causes.is_lost_worker(cause)
            and self._restarts.add_lost_worker(_key(job), cause) is None
        ):
            self.sharing.retry_measuring(job)
        else:
            text = f"could not be measured: {cause}; takes a whole GPU"
            self.listener.on_message(job.cell.signature, text)
            self.sharing.add_measurement(job, None)

    def _collect_awaited(self) -> None:
        """Settle cells that other processes ended; run those here whose owner vanished."""
        now = time.monotonic()
        if not self._awaited or now - self._last_look < LOOK_SECONDS:
            return
        self._last_look, disk = now, self.ledger.disk
        for signature, job in list(self._awaited.items()):
            entry = self.ledger.entry(signature)
            claim = None if disk is None else lease.read_claim(disk, signature)
            if entry.status in self.ENDED:
                del self._awaited[signature]
                is_stopped = entry.status == "stopped"
                self._settle(signature, Outcome(entry.result, entry.cause, stopped=is_stopped))
            elif claim is None or self._monitor.is_dead(claim):
                del self._awaited[signature]
                self._pending.append(replace(job, dead="" if claim is None else claim.last_sign))

    def _estimate_gpu_seconds(self) -> float:
        """GPU-seconds that running cells take from start to end, as far as that is known."""
        on_gpus = [job for job in self._running.values() if job.gpu and not job.measures]
        return sum((self.costs.seconds(job.cell) or 0.0) * job.gpu for job in on_gpus)

    def _may_start(self, job: Job, needed: float = 0.0) -> bool:
        """Whether a job is handed to the executor: within limits none may wait there, since it
        would start too late. needed: GPU-seconds of running cells.
        """
        running = list(self._running.values())
        if self.limits.has_bounds and not self.capacity.has_room(job, running):
            return False
        return self.limits.can_start(self.costs.seconds(job.cell), job.gpu, needed)


def _key(job: Job) -> str:
    return f"measure {job.cell.signature}" if job.measures else job.cell.signature
