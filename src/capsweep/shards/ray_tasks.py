"""Shards on Ray: one task for each, as many at once as the cluster has cores.

Ray repeats the task of a worker or node that is lost, and one that the disk or network fails.
"""

import os
from collections.abc import Generator, Sequence
from itertools import islice
from typing import Any

from capsweep.config import package_files
from capsweep.runtime import ray_start
from capsweep.runtime.ray_start import exceptions, ray
from capsweep.shards.layout import ShardJob
from capsweep.shards.making import AGAIN, ShardOutcome, ShardTask, describe_failure, run_task

RETRIES = 2
ENDING = 10.0  # seconds that begun tasks have, of less than one each; then Ray ends with them


def run_on_ray(
    job: ShardJob, tasks: Sequence[ShardTask], address: str | None = None
) -> Generator[ShardOutcome]:
    """Run tasks on a running cluster, or on a Ray of this machine that ends with the run.

    The outcomes come in the order in which they end. Whatever ends the run, nothing of it runs on.
    """
    cores = None if address else len(os.sched_getaffinity(0))
    with (
        package_files.staged_packages_for(address) as package,
        ray_start.connected(address, cores, package=package),
    ):
        reference, waiting = ray.put(job), iter(tasks)
        running: dict[Any, ShardTask] = {}
        try:
            while True:
                # Few are with Ray at a time, so that a cluster that is to stop stops soon.
                room = 2 * max(1, int(ray.cluster_resources().get("CPU", 0))) - len(running)
                for task in islice(waiting, max(0, room)):
                    running[_make_shard.remote(reference, task)] = task
                if not running:
                    return
                ready, _ = ray.wait(list(running), timeout=1.0)
                for result in ready:
                    yield _read_outcome(result, running.pop(result))
        finally:
            # Not cancelled: ray.cancel kills this process where a task ends just then (ray#54738).
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=ENDING)


@ray.remote(
    num_cpus=1,
    max_retries=RETRIES,
    retry_exceptions=[OSError],  # pyright: ignore[reportArgumentType]
    scheduling_strategy="SPREAD",
)
def _make_shard(job: ShardJob, task: ShardTask) -> ShardOutcome:
    return run_task(job, task)


def _read_outcome(result: Any, task: ShardTask) -> ShardOutcome:
    try:
        return ray.get(result)
    except exceptions.RayTaskError as error:
        return describe_failure(task, error.cause)
    except exceptions.RayError as error:
        loss = f"the worker is lost ({type(error).__name__}: killed, out of memory, or its node)"
        return ShardOutcome(task.part, cause=f"{loss}; {AGAIN}")
