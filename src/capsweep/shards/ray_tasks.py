"""Shards on Ray: one task for each, as many at once as the cluster has cores.

Ray repeats the task of a worker or node that is lost, and one that the disk or network fails.
"""

import os
from collections.abc import Generator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from capsweep.config import package_files
from capsweep.runtime import ray_start
from capsweep.runtime.ray_start import exceptions, ray
from capsweep.shards.layout import ShardJob
from capsweep.shards.making import AGAIN, ShardOutcome, make_shard
from capsweep.shards.manifest import ShardPart

RETRIES = 2
ENDING = 10.0  # seconds that begun tasks have, of less than one each; then Ray ends with them


def run_on_ray(
    job: ShardJob, folder: Path, parts: Sequence[ShardPart], address: str | None = None
) -> Generator[ShardOutcome]:
    """Make parts on a running cluster, or on a Ray of this machine that ends with the run.

    The outcomes come in the order in which they end. Whatever ends the run, nothing of it runs on.
    """
    cores = None if address else len(os.sched_getaffinity(0))
    with (
        package_files.staged_packages_for(address) as package,
        ray_start.connected(address, cores, package=package),
    ):
        reference, waiting = ray.put(job), iter(parts)
        running: dict[Any, ShardPart] = {}
        try:
            while True:
                # Few are with Ray at a time, so that a cluster that is to stop stops soon.
                room = 2 * max(1, int(ray.cluster_resources().get("CPU", 0))) - len(running)
                for part in islice(waiting, max(0, room)):
                    running[_make_shard.remote(reference, folder, part)] = part
                if not running:
                    return
                ready, _ = ray.wait(list(running), timeout=1.0)
                for result in ready:
                    yield _read_outcome(result, running.pop(result))
        finally:
            # Not cancelled: ray.cancel kills this process where a task ends just then (ray#54738).
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=ENDING)


# Retried for OSError alone: what else a job raises, it raises again.
_make_shard = ray.remote(
    num_cpus=1,
    max_retries=RETRIES,
    retry_exceptions=[OSError],  # pyright: ignore[reportArgumentType]
    scheduling_strategy="SPREAD",
)(make_shard)


def _read_outcome(result: Any, part: ShardPart) -> ShardOutcome:
    """Return what became of a part. Raises what its task raised."""
    try:
        return ray.get(result)
    except exceptions.RayTaskError as error:
        raise error.cause from error
    except exceptions.RayError as error:
        loss = f"the worker is lost ({type(error).__name__}: killed, out of memory, or its node)"
        return ShardOutcome(part, cause=f"{loss}; {AGAIN}")
