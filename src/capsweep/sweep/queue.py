"""The queue of a sweep: which job starts next, and what becomes of one that ended.

Retries, bounds of time, cells that other processes run, and measuring before packing are decided
here, for every executor alike.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from capsweep.ledger import causes, lease
from capsweep.ledger.causes import CauseKind
from capsweep.ledger.lease import LeaseMonitor
from capsweep.ledger.ledger import Ledger
from capsweep.sweep.estimates import Estimates, Limits
from capsweep.sweep.progress import SweepProgress
from capsweep.sweep.resources import Capacity, GpuSharing
from capsweep.training import Row, RunHooks, StopFlag
from capsweep.training.run import Job, Outcome, run_job

LOOK_SECONDS = 2.0  # between two looks at cells that other processes run
FRUITLESS = 3  # losses in a row without an advanced checkpoint, after which a cell has failed


@dataclass
class Attempts:
    """The workers of a cell. While each begins at a later epoch than all before, it is tried again:
    spot nodes may take it any number of times. Otherwise the cell may end its workers, or its
    epochs may be longer than its nodes live.
    """

    fruitless: int = 0  # workers that were lost since the checkpoint advanced last
    furthest: int = 0  # epoch at which a worker began
    first: int | None = None  # epoch that the present worker finished
    last: int | None = None  # epoch that the cell finished

    def add_epoch(self, epoch: int) -> None:
        """Note that the worker finished an epoch."""
        self.last = epoch
        self.first = epoch if self.first is None else self.first

    def add_loss(self, cause: str) -> str | None:
        """Note that the worker is lost. Returns the cause of the cell's failure, or None to try
        again.
        """
        began, self.first = self.first or 0, None
        self.fruitless = 0 if began > self.furthest else self.fruitless + 1
        self.furthest = max(began, self.furthest)
        if self.fruitless < FRUITLESS:
            return None
        why = cause.removeprefix(causes.describe_lost_worker(""))
        return causes.describe_lost_worker(
            f"{why}; {self.fruitless} workers in a row were lost without a newer checkpoint: the "
            "cell may take its worker with it, or its epochs may be longer than its nodes live"
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
        progress: SweepProgress,
        costs: Estimates,
        limits: Limits | None = None,
    ) -> None:
        self.ledger, self.progress, self.costs = ledger, progress, costs
        self.limits = limits or Limits()
        self.capacity = Capacity()
        self.sharing = GpuSharing()
        self.failed: dict[str, str] = {}
        self._pending = sorted(jobs, key=lambda job: -(costs.seconds(job.cell) or math.inf))
        self._running: dict[str, Job] = {}
        self._begun: set[str] = set()  # of these, what a worker has; others wait in the executor
        self._awaited: dict[str, Job] = {}  # whose cells other processes run
        self._last_look = float("-inf")  # at these
        self._monitor = LeaseMonitor()
        self._attempts: dict[str, Attempts] = defaultdict(Attempts)

    @property
    def count_left(self) -> int:
        """The number of cells that were not started."""
        waiting = [job for key, job in self._running.items() if key not in self._begun]
        cells = sum(not job.is_calibration for job in waiting)
        return len(self._pending) + len(self._awaited) + cells

    @property
    def is_exhausted(self) -> bool:
        """Whether no other job will ever start."""
        if self.limits.is_stopping:  # a node that is waited for may never come
            return not self._begun
        if self._running or self._awaited:
            return False
        jobs = map(self._prepare_job, self._pending)
        return not any(job is None or self._may_start(job) for job in jobs)

    def set_capacity(self, capacity: Capacity) -> None:
        """Note what the executor has, when it is ready or its cluster has changed.

        Raises ConfigError at first, naming the key, for a cell that no node can hold; once the
        sweep runs, such a cell waits for the node that was lost.
        """
        if self.capacity == Capacity():
            capacity.check_fits(self._pending)
        self.capacity = capacity

    def next_job(self) -> Job | None:
        """Return the job to start now; None when there is none at the moment."""
        self._collect_awaited()
        for waiting in self._pending:
            job = self._prepare_job(waiting)
            if job is None or not self._may_start(job):
                continue
            if job.is_calibration:
                self.sharing.begin_measuring(job)
            else:
                self._pending.remove(waiting)
            job = replace(job, leave_at=self.limits.leave_at)
            self._running[_key(job)] = job
            return job
        return None

    def _prepare_job(self, job: Job) -> Job | None:
        """Return the job with its resources; None: not yet."""
        resources = self.sharing.choose_resources(job, self.capacity)
        return None if resources is None else replace(job, **resources)

    def on_start(self, job: Job) -> None:
        """Note that a worker has the job."""
        self._begun.add(_key(job))
        if not job.is_calibration:
            self.progress.on_start(job.cell.signature, job.cell.config["epochs"])

    def on_epoch(self, job: Job, row: dict[str, Any]) -> None:
        """Note that a job finished an epoch."""
        self._attempts[_key(job)].add_epoch(row["epoch"])
        self.progress.on_epoch(job.cell.signature, row)

    def on_end(self, job: Job, outcome: Outcome) -> None:
        """Note that a job ended, well or not. It may be put back."""
        if self._running.pop(_key(job), None) is None:
            return  # reported twice: a worker that was lost after its last report
        self._begun.discard(_key(job))
        if outcome.ends_sweep:
            self.limits.refuse_more(outcome.paused)
        if outcome.elsewhere is not None:
            self.progress.on_end(job.cell.signature, outcome)
            self._awaited[job.cell.signature] = job
        elif job.is_calibration:
            self._end_measuring(job, outcome)
        elif outcome.paused:
            self._pending.insert(0, job)
            self.progress.on_end(job.cell.signature, outcome)
        elif outcome.cause is None or not self._restart(job, outcome.cause):
            self._settle(job.cell.signature, outcome)

    def _settle(self, signature: str, outcome: Outcome) -> None:
        if outcome.cause is not None:
            self.failed[signature] = outcome.cause
            try:
                self.ledger.note_failure(signature, outcome.cause)
            except OSError as error:
                text = f"its failure could not be written down: {error}"
                self.progress.on_message(signature, text)
        if outcome.result is not None:
            self.costs.add(outcome.result)
        self.progress.on_end(signature, outcome)

    def _restart(self, job: Job, cause: str) -> bool:
        """Return whether a failed job is tried again, or was settled as that of a lost worker."""
        signature = job.cell.signature
        if causes.classify_cause(cause) == CauseKind.OUT_OF_MEMORY:
            larger = self.sharing.enlarge_share(job, self.capacity)
            if larger is not None:
                self.progress.on_message(signature, f"{cause}; once more with a larger share")
                self._pending.insert(0, larger)
                return True
        if not causes.is_lost_worker(cause):
            return False
        attempts = self._attempts[signature]
        if (why := attempts.add_loss(cause)) is not None:
            self._settle(signature, Outcome(cause=why))
        else:
            after = "" if attempts.last is None else f" (epoch {attempts.last} was finished)"
            text = f"{cause}; goes on from its last checkpoint{after}"
            self.progress.on_message(signature, text)
            self._pending.insert(0, replace(job, dead_claim=""))
        return True

    def _end_measuring(self, job: Job, outcome: Outcome) -> None:
        cause = outcome.cause
        is_lost = cause is not None and causes.is_lost_worker(cause)
        if cause is None and not outcome.paused:
            self.sharing.add_measurement(job, outcome.result)
        elif cause is None or (is_lost and self._attempts[_key(job)].add_loss(cause) is None):
            self.sharing.retry_measuring(job)
        else:
            text = f"could not be measured: {cause}; takes a whole GPU"
            self.progress.on_message(job.cell.signature, text)
            self.sharing.add_measurement(job, None)

    def _collect_awaited(self) -> None:
        """Settle cells that other processes ended; run those here whose owner vanished."""
        now = time.monotonic()
        if not self._awaited or now - self._last_look < LOOK_SECONDS:
            return
        self._last_look, disk = now, self.ledger.disk
        for signature, job in list(self._awaited.items()):
            entry = self.ledger.read_entry(signature)
            claim = None if disk is None else lease.read_claim(disk, signature)
            if entry.status in self.ENDED:
                del self._awaited[signature]
                is_stopped = entry.status == "stopped"
                self._settle(signature, Outcome(entry.result, entry.cause, stopped=is_stopped))
            elif claim is None or self._monitor.is_dead(claim):
                del self._awaited[signature]
                sign = "" if claim is None else claim.last_sign
                self._pending.append(replace(job, dead_claim=sign))

    def _may_start(self, job: Job) -> bool:
        """Return whether a job is handed to the executor: within limits none may wait there, since
        it would start too late.
        """
        running = list(self._running.values())
        if self.limits.has_bounds and not self.capacity.has_room(job, running):
            return False
        return self.limits.can_start(self.costs.seconds(job.cell))


def _key(job: Job) -> str:
    return f"measure {job.cell.signature}" if job.is_calibration else job.cell.signature


# Runs jobs until the queue is exhausted; returns early, without an exception, when the user
# interrupts. The folder is of this machine; the configuration is of one of the cells.
Executor = Callable[[JobQueue, Path, Mapping[str, Any]], None]


def execute_locally(queue: JobQueue, *_: object) -> None:
    """Run jobs in this process, one after the other, with neither Ray nor W&B needed; returns at
    Ctrl-C. At SIGTERM, as of a job of Slurm that is preempted, the cell ends after its epoch.
    """
    queue.set_capacity(Capacity())
    stop_flag = StopFlag()
    with stop_flag.handling_sigterm(), suppress(KeyboardInterrupt):
        while not queue.is_exhausted and not stop_flag.is_set:
            job = queue.next_job()
            if job is None:
                time.sleep(LOOK_SECONDS)
                continue
            queue.on_start(job)
            hooks = RunHooks(on_epoch=partial(_report_epoch, queue, job), stop_flag=stop_flag)
            queue.on_end(job, run_job(job, hooks))


def _report_epoch(queue: JobQueue, job: Job, row: Row) -> bool:
    queue.on_epoch(job, row)
    return queue.limits.is_stopping
