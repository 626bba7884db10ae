"""The queue of a sweep: it decides which job starts next, and whether an ended job is retried.

The queue also applies the time limits, waits for cells that other processes run, and starts a
measurement of each shape before cells share a GPU. All executors use the same queue.
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
from capsweep.ledger.ledger import Ledger
from capsweep.sweep.estimates import Estimates, Limits
from capsweep.sweep.progress import SweepProgress
from capsweep.sweep.resources import Capacity, GpuSharing
from capsweep.training import Row, RunHooks, StopFlag
from capsweep.training.run import Job, Outcome, run_job

LOOK_SECONDS = 2.0  # seconds between two reads of cells that other processes run
MOST_FRUITLESS = 3  # lost workers in a row, without a newer checkpoint, after which a cell fails


@dataclass
class Attempts:
    """The lost workers of a cell, which decide whether the cell is tried again.

    A cell is retried without limit as long as each worker begins at a later epoch than all earlier
    workers. This is usual on spot nodes. A lost worker is fruitless if it finished no epoch, or
    began at epoch 0, or began no later than an earlier worker. Then the cell may kill its workers,
    or an epoch may take longer than a node is available. After MOST_FRUITLESS fruitless workers in
    a row, the cell fails.
    """

    fruitless: int = 0  # number of fruitless workers in a row
    furthest: int = 0  # latest epoch at which a worker began
    first: int | None = None  # first epoch that the present worker finished
    last: int | None = None  # last epoch that any worker finished

    def add_epoch(self, epoch: int) -> None:
        """Record that the present worker finished an epoch."""
        self.last = epoch
        self.first = epoch if self.first is None else self.first

    def add_loss(self, cause: str) -> str | None:
        """Record that the present worker is lost.

        Returns:
            The cause of the cell's failure, or None if the cell is to be tried again.
        """
        began, self.first = self.first or 0, None
        self.fruitless = 0 if began > self.furthest else self.fruitless + 1
        self.furthest = max(began, self.furthest)
        if self.fruitless < MOST_FRUITLESS:
            return None
        return (
            f"{causes.LOST_WORKER}{cause.removeprefix(causes.LOST_WORKER)}; {self.fruitless} "
            "workers in a row were lost without a newer checkpoint: the cell may kill its worker, "
            "or an epoch may take longer than a node is available"
        )


class JobQueue:
    """The jobs of due cells, which an executor takes one by one.

    Cells of unknown length come first. The other cells follow, the longest first.

    Args:
        jobs: The jobs to run.
        ledger: The ledger of their cells.
        progress: Shows starts, epochs and ends of cells.
        costs: Estimates of the cells' lengths.
        limits: The time limits of the command. Earlier queues of the same command may have used a
            part of the time.

    Attributes:
        ENDED: The statuses that a cell can have in the ledger after it has ended.
        capacity: The CPUs and GPUs of the executor.
        sharing: For each `Cell.shape`, the share of a GPU that one cell takes.
        failed: The causes of failed cells, by signature.
    """

    ENDED = ("done", "failed")

    def __init__(
        self,
        jobs: Sequence[Job],
        ledger: Ledger,
        progress: SweepProgress,
        costs: Estimates,
        limits: Limits,
    ) -> None:
        self.ledger, self.progress, self.costs, self.limits = ledger, progress, costs, limits
        self.capacity, self.sharing = Capacity(), GpuSharing()
        self.failed: dict[str, str] = {}
        self._pending = sorted(jobs, key=lambda job: -(costs.seconds(job.cell) or math.inf))
        self._running: dict[str, Job] = {}
        self._begun: set[str] = set()  # keys of the running jobs that have a worker
        self._awaited: dict[str, Job] = {}  # jobs whose cells other processes run, by signature
        self._last_look = float("-inf")  # when the awaited cells were last read
        self._monitor = lease.LeaseMonitor()
        self._attempts: dict[str, Attempts] = defaultdict(Attempts)

    @property
    def count_left(self) -> int:
        """The number of cells that neither run in this command nor have ended.

        Paused cells, and cells that another process runs, are included.
        """
        waiting = [job for key, job in self._running.items() if key not in self._begun]
        cells = sum(not job.is_calibration for job in waiting)
        return len(self._pending) + len(self._awaited) + cells

    @property
    def is_exhausted(self) -> bool:
        """Whether no job runs, and no other job will start."""
        if self.limits.is_stopping:  # jobs that still wait for a node do not start
            return not self._begun
        if self._running or self._awaited:
            return False
        jobs = (self.sharing.prepare_job(job, self.capacity) for job in self._pending)
        return not any(job is None or self._may_start(job) for job in jobs)

    def set_capacity(self, capacity: Capacity) -> None:
        """Set the CPUs and GPUs of the executor.

        The executor calls this method when it is ready, and again when its cluster has grown.

        Raises:
            ConfigError: No node has enough CPUs or GPUs for a cell; the message names the key. This
                is checked only at the first call. Later, such a cell waits, because a lost node may
                come back.
        """
        if self.capacity == Capacity():
            capacity.check_fits(self._pending)
        self.capacity = capacity

    def next_job(self) -> Job | None:
        """Return the job to start now, or None if no job can start at the moment."""
        self._collect_awaited()
        for waiting in self._pending:
            job = self.sharing.prepare_job(waiting, self.capacity)
            if job is None or not self._may_start(job):
                continue
            if job.is_calibration:
                self.sharing.measuring.add(job.cell.shape)
            else:
                self._pending.remove(waiting)
            job = replace(job, leave_at=self.limits.leave_at)
            self._running[_key(job)] = job
            return job
        return None

    def on_start(self, job: Job) -> None:
        """Record that a worker started the job."""
        self._begun.add(_key(job))
        if not job.is_calibration:
            self.progress.on_start(job.cell.signature, job.cell.config["epochs"])
            if job.shorter:
                text = f"continues from the finished cell {job.shorter}"
                self.progress.on_message(job.cell.signature, text)

    def on_epoch(self, job: Job, row: dict[str, Any]) -> None:
        """Record that a job finished the epoch whose metrics are in `row`."""
        self._attempts[_key(job)].add_epoch(row["epoch"])
        self.progress.on_epoch(job.cell.signature, row)

    def on_end(self, job: Job, outcome: Outcome) -> None:
        """Record that a job ended, and put the job back into the queue if it is to run again."""
        if self._running.pop(_key(job), None) is None:
            return  # reported twice: the worker was lost after it reported the end
        self._begun.discard(_key(job))
        if outcome.ends_sweep:
            self.limits.refusal = outcome.paused
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
        """Count a cell as ended; if the cell failed, write the cause to the ledger."""
        if outcome.cause is not None:
            self.failed[signature] = outcome.cause
            try:
                self.ledger.note_failure(signature, outcome.cause)
            except OSError as error:
                text = f"its failure could not be written to the ledger: {error}"
                self.progress.on_message(signature, text)
        if outcome.result is not None:
            self.costs.add(outcome.result)
        self.progress.on_end(signature, outcome)

    def _restart(self, job: Job, cause: str) -> bool:
        """Put a failed job back into the queue if a retry may succeed.

        Returns:
            False if the caller must settle the job. True if the job was put back, or was settled
            here as failed because it had lost too many workers.
        """
        signature = job.cell.signature
        if causes.classify_cause(cause) == causes.CauseKind.OUT_OF_MEMORY:
            larger = self.sharing.enlarge_share(job, self.capacity)
            if larger is not None:
                text = f"{cause}; trying again with a larger share"
                self.progress.on_end(signature, Outcome(paused=text))
                self._pending.insert(0, larger)
                return True
        if not causes.is_lost_worker(cause):
            return False
        attempts = self._attempts[signature]
        if (why := attempts.add_loss(cause)) is not None:
            self._settle(signature, Outcome(cause=why))
        else:
            after = "" if attempts.last is None else f" (epoch {attempts.last} was finished)"
            text = f"{cause}; continues from its last checkpoint{after}"
            self.progress.on_end(signature, Outcome(paused=text))
            self._pending.insert(0, replace(job, dead_claim=""))
        return True

    def _end_measuring(self, job: Job, outcome: Outcome) -> None:
        """Set a shape's share of a GPU after its measurement.

        If the measurement failed, the share is a whole GPU. If it was paused, or if its worker was
        lost and a retry is allowed, another cell measures the shape.
        """
        cause = outcome.cause
        is_lost = cause is not None and causes.is_lost_worker(cause)
        if cause is None and not outcome.paused:
            self.sharing.add_measurement(job, outcome.result)
        elif cause is None or (is_lost and self._attempts[_key(job)].add_loss(cause) is None):
            self.sharing.measuring.discard(job.cell.shape)
        else:
            text = f"its share of a GPU could not be measured: {cause}; it takes a whole GPU"
            self.progress.on_message(job.cell.signature, text)
            self.sharing.add_measurement(job, None)

    def _collect_awaited(self) -> None:
        """Settle cells that other processes ended, and queue the cells that nobody runs any more.

        Nobody runs a cell whose claim is gone, or whose owner has died.
        """
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
        """Return whether a job may be handed to the executor now.

        If the command has a time limit, a job is handed over only if it can start immediately. A
        job that waits inside the executor would start too late.
        """
        running = list(self._running.values())
        if self.limits.has_bounds and not self.capacity.has_room(job, running):
            return False
        return self.limits.can_start(self.costs.seconds(job.cell))


def _key(job: Job) -> str:
    return f"measure {job.cell.signature}" if job.is_calibration else job.cell.signature


# A function that runs jobs until the queue is exhausted. When the user interrupts, the function
# returns early, without an exception. Its arguments are the queue, a scratch folder of this
# machine, and the configuration of one of the cells.
Executor = Callable[[JobQueue, Path, Mapping[str, Any]], None]


def execute_locally(queue: JobQueue, *_: object) -> None:
    """Run jobs in this process, one after the other, without Ray.

    After Ctrl-C, the function returns. After SIGTERM, which Slurm sends before it ends a job, the
    cell stops after its epoch, and the function returns.
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
