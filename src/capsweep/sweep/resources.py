"""What nodes have, and what cells take of them.

With `resources.gpu: auto` one cell of each shape is measured alone on a whole GPU. The others share
GPUs, as many as the memory and the idle time of the device allow. Ray places them.
"""

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capsweep.errors import ConfigError
from capsweep.ledger.records import Measurement
from capsweep.training import provenance
from capsweep.training.run import Job

AUTO = "auto"  # of `resources.gpu`
RESOLUTION = 10_000  # Ray counts shares in ten-thousandths
ROUNDING = 1e-3  # of sums of shares
HEADROOM = 0.1  # of the device's memory, for fragmentation


@dataclass(frozen=True)
class Capacity:
    """What an executor, or one of its nodes, can run at once. The default is one cell at a time.

    nodes: empty for a node, and for an executor that is one process, which takes what it finds.
    """

    cpu: float = 1
    gpu: float = 0
    nodes: "tuple[Capacity, ...]" = ()

    @classmethod
    def of_nodes(cls, nodes: "Sequence[Capacity]") -> "Capacity":
        """Return the sum of some nodes."""
        return cls(sum(node.cpu for node in nodes), sum(node.gpu for node in nodes), tuple(nodes))

    def has_room(self, job: Job, running: Sequence[Job]) -> bool:
        """Whether the job would start at once, nodes taken together."""
        cpu = job.cpu + sum(other.cpu for other in running)
        gpu = job.gpu + sum(other.gpu for other in running)
        return not running or (cpu <= self.cpu and gpu <= self.gpu + ROUNDING)

    def check_fits(self, jobs: Iterable[Job]) -> None:
        """Raise ConfigError, naming the key and what the nodes have, for a job that no node can
        hold.
        """
        for job in jobs if self.nodes else ():
            gpu = job.cell.config["resources"]["gpu"]
            gpu = job.gpu if gpu == AUTO else max(job.gpu, gpu)
            if not any(job.cpu <= node.cpu and gpu <= node.gpu for node in self.nodes):
                kinds = Counter(f"{node.cpu:g} CPUs and {node.gpu:g} GPUs" for node in self.nodes)
                have = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
                raise ConfigError(
                    f"resources.cpu={job.cpu:g} with resources.gpu={gpu:g}: no node has so many, "
                    f"and a cell is on one node; the nodes have {have}"
                )


def count_slots(config: Mapping[str, Any]) -> tuple[int, str, float]:
    """Return how many cells run at once on this machine, `GPU` or `CPU`, and the share each takes.

    gpu=auto counts whole GPUs, although several cells may share one; on a cluster it is a GPU,
    whatever this machine has.
    """
    resources, gpus = config["resources"], len(provenance.list_gpus())
    has_gpus = gpus > 0 or config["cluster"]["name"] != "local"
    share = float(has_gpus) if resources["gpu"] == AUTO else float(resources["gpu"])
    by_cpu = max(1, int(len(os.sched_getaffinity(0)) // resources["cpu"]))
    if share == 0:
        return by_cpu, "CPU", float(resources["cpu"])
    return max(1, min(by_cpu, int(gpus / share))), "GPU", share


def choose_share(measurement: Measurement) -> float:
    """Return the share of one device that a cell takes: 1/k, rounded down to what Ray counts, so
    that k cells fit and none is on two devices.
    """
    peak, total = measurement.peak_memory_bytes.get("gpu"), measurement.device_memory_bytes
    if not peak or total is None:
        return 1.0
    together = math.floor(total * (1 - HEADROOM) / peak)
    if measurement.utilisation:
        together = min(together, math.floor(1 / measurement.utilisation))
    return share_equally(together)


def share_equally(together: int) -> float:
    """Return the share of each of some cells that have a device together."""
    return 1.0 if together <= 1 else max(1, RESOLUTION // together) / RESOLUTION


class GpuSharing:
    """The share of a GPU that cells of each shape take, measured by one of them."""

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}
        self._measuring: set[str] = set()

    def choose_resources(self, job: Job, capacity: Capacity) -> dict[str, Any] | None:
        """Return the share of a GPU that a job is to have, and whether it measures that of its
        shape, as fields of the job; None: not yet.
        """
        gpu, key = job.cell.config["resources"]["gpu"], job.cell.shape
        if gpu != AUTO:
            return {"gpu": max(job.gpu, gpu)}
        if capacity.gpu < 1 or job.gpu > 0:
            return {}
        if key in self._shares:
            return {"gpu": self._shares[key]}
        return None if key in self._measuring else {"gpu": 1, "is_calibration": True}

    def begin_measuring(self, job: Job) -> None:
        """Let other cells of the shape wait: an executor has a job that measures."""
        self._measuring.add(job.cell.shape)

    def retry_measuring(self, job: Job) -> None:
        """Let the next cell of the shape measure: the worker was lost."""
        self._measuring.discard(job.cell.shape)

    def add_measurement(self, job: Job, result: Mapping[str, Any] | None) -> None:
        """Note the measurement of a shape; None: there is none, and its cells take whole GPUs."""
        share = 1.0 if result is None else choose_share(Measurement(**result))
        self._shares[job.cell.shape] = share

    def enlarge_share(self, job: Job, capacity: Capacity) -> Job | None:
        """Return the job after an out-of-memory: with at least twice its share of a GPU, also for
        cells of its shape that come later; without a GPU, with twice the CPUs, once. None: it had
        all.
        """
        facts = {**job.result_extras, "larger_share": True}
        if job.gpu == 0:
            largest = max((node.cpu for node in capacity.nodes), default=capacity.cpu)
            cpu = min(2 * job.cpu, largest)
            has_all = cpu <= job.cpu or "larger_share" in job.result_extras
            return None if has_all else replace(job, cpu=cpu, result_extras=facts)
        if job.gpu >= 1:
            return None
        share, key = share_equally(round(1 / job.gpu) // 2), job.cell.shape
        if key in self._shares:
            self._shares[key] = max(share, self._shares[key])
        return replace(job, gpu=share, result_extras=facts)
