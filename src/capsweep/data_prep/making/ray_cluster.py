"""One task of Ray, the nodes that it may run on, and why it did not end."""

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from capsweep.data_prep.job import Job
from capsweep.data_prep.making import worker
from capsweep.data_prep.making.work import MEMORY, Outcome, Work
from capsweep.errors import UserError
from capsweep.ray_start import exceptions, ray


@dataclass(frozen=True)
class Place:
    """Where a task runs: Ray's name of the node, the host, the process, and its log there."""

    node: str
    host: str
    pid: int
    log: str


def begin(reference: Any, work: Work, avoided: list[str]) -> Any:
    """Have Ray make a shard of the job that was put at `reference`, not on the nodes avoided.

    Returns a generator of references to a Place and an Outcome, the first when the task runs.
    """
    options = {"label_selector": {"ray.io/node-id": f"!in({','.join(avoided)})"}} if avoided else {}
    # In a list, or Ray would bring the job for every task.
    return _task.options(**options).remote([reference], work)


@ray.remote(num_cpus=1, memory=MEMORY, max_retries=0, num_returns="streaming")
def _task(job: list[Any], work: Work) -> Iterator[Place | Outcome]:
    log = os.path.realpath("/proc/self/fd/2")
    node = ray.get_runtime_context().get_node_id()
    yield Place(node, socket.gethostname(), os.getpid(), log)
    yield worker.do(_fetched(job[0]), work)


# Of this process, by Ray's name: what was fetched last.
_jobs: dict[str, Job] = {}


def _fetched(reference: Any) -> Job:
    if reference.hex() not in _jobs:
        _jobs.clear()
        _jobs[reference.hex()] = ray.get(reference)
    return _jobs[reference.hex()]


def cores() -> int:
    """Of the cluster now; one that grows when it is asked to may have none yet."""
    return int(ray.cluster_resources().get("CPU", 0))


def nodes() -> list[str]:
    """Those that a task has room on, when nothing else runs there."""
    return [
        node["NodeID"]
        for node in ray.nodes()
        if node["Alive"]
        and node["Resources"].get("CPU", 0) >= 1
        and node["Resources"].get("memory", 0) >= MEMORY
    ]


def lost(error: Exception, place: Place | None) -> str:
    """The cause of a task that Ray lost. Without the host, so that equal causes count together."""
    logs = os.path.dirname(place.log) if place else "its logs"
    if isinstance(error, exceptions.OutOfMemoryError):
        what = "Ray ended the worker, since its node ran out of memory"
    elif isinstance(error, exceptions.WorkerCrashedError | exceptions.NodeDiedError):
        what = "the worker process is gone (killed, or its node was lost)"
    else:
        what = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return f"{what}; Ray says more in {logs} of the node; run the same command again"


def raised(error: BaseException) -> str:
    """The cause of a task that ended with an error."""
    if isinstance(error, UserError):
        return str(error)
    lines = str(error).splitlines() or [""]
    # Ray's own errors are a whole traceback, which ends with what the node misses.
    said = lines[-1] if isinstance(error, exceptions.RayError) else lines[0]
    return f"{type(error).__name__}: {said}"
