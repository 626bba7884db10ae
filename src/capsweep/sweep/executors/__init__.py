"""Where jobs run. An executor draws jobs from a queue and reports what happens to them. Ray is
imported only where it is chosen, since it need not be installed.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from capsweep.sweep.job import Job, run_job
from capsweep.sweep.queue import LOOK_SECONDS, JobQueue
from capsweep.sweep.resources import Capacity, Node
from capsweep.training import Row, RunHooks, StopFlag

NAMES = ("ray", "local", "array")
NOTHING = Capacity(0, 0)


@dataclass(frozen=True)
class Cluster:
    """A cluster of Ray, or a Ray of this machine alone.

    address: None: of this machine, ended with the sweep. grows_to: what an autoscaler may bring it
    to, 0: what it has. config: the `places` and the `cluster` of its cells, read again on nodes.
    """

    address: str | None = None
    grows_to: Capacity = NOTHING
    config: Mapping[str, Any] | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Cluster":
        """Return the cluster that a cell's configuration names."""
        grows = config["cluster"]["grows_to"]
        nodes = [Node(grows["cpu"], grows["gpu"])] * grows["nodes"]
        own = {name: config[name] for name in ("places", "cluster")}
        return cls(config["cluster"]["address"], Capacity.of_nodes(nodes), own)


LOCAL = Cluster()


# Runs jobs until the queue is exhausted; returns early, without an exception, when the user
# interrupts. The folder is of this machine, for its own files.
Executor = Callable[[JobQueue, Path, Cluster], None]


def execute_locally(queue: JobQueue, scratch: Path, cluster: Cluster = LOCAL) -> None:
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
