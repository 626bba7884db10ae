"""Functions that make shards as Ray tasks, one task for each shard.

Ray repeats a task if its worker or node is lost, or if the disk or network fails.
"""

import os
from collections.abc import Generator
from itertools import islice
from typing import Any

from capsweep.config import package_files
from capsweep.runtime import ray_start
from capsweep.runtime.ray_start import exceptions, ray
from capsweep.shards.making import RERUN_HINT, MakingPlan, ShardOutcome, make_shard
from capsweep.shards.manifest import ShardPart

RETRIES = 2  # repetitions of a task after its first attempt
ENDING_SECONDS = 10.0  # time for running tasks (under 1 s each) to end before Ray is stopped


def run_on_ray(plan: MakingPlan, address: str | None) -> Generator[ShardOutcome]:
    """Make shards as tasks of a running Ray cluster, or of Ray on this machine.

    If the run is interrupted, the tasks that Ray already has get 10 s to end, and Ray gets no other
    task.

    Args:
        plan: The shards and their folder, which all nodes must see.
        address: Address of a running cluster; None starts Ray on this machine.

    Yields:
        The outcome of each shard, in the order in which the tasks end.

    Raises:
        ConfigError: If the cluster cannot be joined, or if Ray does not start on this machine.
        Exception: The error of a task. After an OSError, the task is first repeated, up to twice.
    """
    cores = None if address else len(os.sched_getaffinity(0))
    with (
        package_files.staged_packages_for(address) as package,
        ray_start.connected(address, cores, package=package),
    ):
        reference, waiting = ray.put(plan.job), iter(plan.parts)
        running: dict[Any, ShardPart] = {}
        try:
            while True:
                # Ray gets few tasks at a time, so that an interrupted run stops soon.
                room = 2 * max(1, int(ray.cluster_resources().get("CPU", 0))) - len(running)
                for part in islice(waiting, max(0, room)):
                    running[_make_shard.remote(reference, plan.folder, part)] = part
                if not running:
                    return
                ready, _ = ray.wait(list(running), timeout=1.0)
                for result in ready:
                    yield _read_outcome(result, running.pop(result))
        finally:
            # Tasks are not cancelled: ray.cancel can kill this process if a task ends at the same
            # moment (ray#54738).
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=ENDING_SECONDS)


# Only an OSError is worth a retry; any other error of a job would occur again.
_make_shard = ray.remote(
    num_cpus=1,
    max_retries=RETRIES,
    retry_exceptions=[OSError],  # pyright: ignore[reportArgumentType]
    scheduling_strategy="SPREAD",
)(make_shard)


def _read_outcome(result: Any, part: ShardPart) -> ShardOutcome:
    """Return the outcome of a task that ended, or raise the error of the task.

    If the worker was lost, the outcome is a failure.
    """
    try:
        return ray.get(result)
    except exceptions.RayTaskError as error:
        raise error.cause from error
    except exceptions.RayError as error:
        loss = f"the worker was lost ({type(error).__name__}: killed, out of memory, or node lost)"
        return ShardOutcome(part, cause=f"{loss}; {RERUN_HINT}")
