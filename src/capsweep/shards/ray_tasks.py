"""Shards on Ray: one task for each, as many at once as the cluster has cores.

Ray repeats the task of a worker or node that is lost. Few tasks are with Ray at a time, so that a
cluster that is to stop stops soon.
"""

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from capsweep import ray_start, terminal
from capsweep.config import package_files
from capsweep.errors import UserError
from capsweep.ray_start import exceptions, ray
from capsweep.shards.job import Job
from capsweep.shards.making import ShardOutcome, ShardTask, run_task

RETRIES = 2  # of a task whose worker is lost, or that meets an error of the disk or network
MEMORY = 500_000_000  # bytes of a worker, beside the shard that it makes
SEEN_WITHIN = 60.0  # seconds after which a written shard must be seen here; NFS may take 30
ENDING = 10.0  # seconds that cancelled tasks have


class RayEngine:
    """Runs tasks on a running cluster, or on a Ray of this machine that ends with the run."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address

    def count_cores(self) -> int:
        """Of the cluster, or of this machine. Raises UserError where there is no cluster."""
        if self.address is None:
            return len(os.sched_getaffinity(0))
        with self._connected():
            return max(1, _count_cluster_cores())

    def run(self, job: Job, tasks: Sequence[ShardTask]) -> Iterator[ShardOutcome]:
        """In the order in which they end. Whatever ends the run, nothing of it runs on."""
        with package_files.staged_packages_for(self.address) as package, self._connected(package):
            self._check_memory()
            reference, waiting = ray.put(job), deque(tasks)
            running: dict[Any, ShardTask] = {}
            try:
                while waiting or running:
                    while waiting and len(running) < 2 * max(1, _count_cluster_cores()):
                        task = waiting.popleft()
                        # In a list, or Ray would bring the job for every task.
                        running[_make_shard.remote([reference], task)] = task
                    ready, _ = ray.wait(list(running), timeout=1.0)
                    for result in ready:
                        yield _outcome_of(result, running.pop(result))
            finally:
                for result in running:
                    ray.cancel(result)
                if running:
                    ray.wait(list(running), num_returns=len(running), timeout=ENDING)

    def _check_memory(self) -> None:
        memory = max((node["Resources"].get("memory", 0) for node in ray.nodes()), default=0)
        if memory < MEMORY:
            lack = f"no node has {MEMORY / 1e6:.0f} MB of memory to give"
            if self.address is None:
                raise UserError(f"{lack}; free some, or use --executor local")
            terminal.print_aside(f"{self.address}: {lack}; waiting for one")

    def _connected(self, package: Path | None = None) -> Any:
        cores = None if self.address else self.count_cores()
        return ray_start.connected(self.address, cores, package=package)


@ray.remote(
    num_cpus=1,
    memory=MEMORY,
    max_retries=RETRIES,
    retry_exceptions=[OSError],  # pyright: ignore[reportArgumentType]
    scheduling_strategy="SPREAD",
)
def _make_shard(job: list[Any], task: ShardTask) -> ShardOutcome:
    return run_task(_fetch_job(job[0]), task)


_jobs: dict[str, Job] = {}  # of this process, by Ray's name: what was fetched last


def _fetch_job(reference: Any) -> Job:
    if reference.hex() not in _jobs:
        _jobs.clear()
        _jobs[reference.hex()] = ray.get(reference)
    return _jobs[reference.hex()]


def _outcome_of(result: Any, task: ShardTask) -> ShardOutcome:
    try:
        outcome: ShardOutcome = ray.get(result)
    except exceptions.RayError as error:
        return ShardOutcome(task.part, cause=_describe_loss(error))
    return outcome if outcome.shard is None or _is_seen(task, outcome) else _unseen(task)


def _is_seen(task: ShardTask, outcome: ShardOutcome) -> bool:
    """Whether this machine sees the shard that a worker wrote; NFS may take a while."""
    assert outcome.shard is not None
    until = time.monotonic() + SEEN_WITHIN
    while True:
        try:
            os.close(os.open(task.folder, os.O_RDONLY))  # has NFS ask its server anew
            if (task.folder / task.part.name).stat().st_size == outcome.shard.bytes:
                return True
        except OSError:
            pass
        if time.monotonic() > until:
            return False
        time.sleep(0.2)


def _unseen(task: ShardTask) -> ShardOutcome:
    cause = (
        f"{task.folder}: a worker wrote a shard where this machine does not see it; STORAGE must "
        "be a folder that all nodes share"
    )
    return ShardOutcome(task.part, cause=cause, is_common=True)


def _describe_loss(error: Exception) -> str:
    """The cause of a task that failed. Without the host, so that equal causes count together."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, UserError):
        return str(cause)
    if isinstance(error, exceptions.OutOfMemoryError):
        what = "Ray ended the worker, since its node ran out of memory"
    elif isinstance(error, exceptions.WorkerCrashedError | exceptions.NodeDiedError):
        what = "the worker process is gone (killed, or its node was lost)"
    else:
        told = cause if isinstance(cause, Exception) else error
        what = f"{type(told).__name__}: {(str(told).splitlines() or [''])[0]}"
    return f"{what}; run the same command again"


def _count_cluster_cores() -> int:
    return int(ray.cluster_resources().get("CPU", 0))
