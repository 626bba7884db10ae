"""The CPUs and GPUs of nodes, and the CPUs and the share of a GPU that a cell takes.

With `resources.gpu: auto`, one cell of each shape is measured alone on a whole GPU. Cells have the
same shape if they need equal work and memory for a training step (`Cell.shape`). The other cells of
the shape then share GPUs: as many cells on a GPU as its memory and its idle time allow. Ray chooses
the GPU of each cell.
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

AUTO = "auto"  # the value of `resources.gpu` for a measured share
RESOLUTION = 10_000  # Ray counts shares of a GPU in ten-thousandths
ROUNDING = 1e-3  # tolerance when shares are added up
HEADROOM = 0.1  # fraction of the GPU's memory that is left free for fragmentation


@dataclass(frozen=True)
class Capacity:
    """The CPUs and GPUs of an executor, or of one of its nodes.

    The default values describe an executor that runs one cell at a time.
    """

    cpu: float = 1  # number of CPUs
    gpu: float = 0  # number of GPUs
    nodes: "tuple[Capacity, ...]" = ()  # nodes of an executor; empty for a node or local process

    @classmethod
    def of_nodes(cls, nodes: "Sequence[Capacity]") -> "Capacity":
        """Return the capacity of an executor that has these nodes."""
        return cls(sum(node.cpu for node in nodes), sum(node.gpu for node in nodes), tuple(nodes))

    def has_room(self, job: Job, running: Sequence[Job]) -> bool:
        """Return whether all nodes together have enough free CPUs and GPUs for a job.

        If no job runs, return True.
        """
        cpu = job.cpu + sum(other.cpu for other in running)
        gpu = job.gpu + sum(other.gpu for other in running)
        return not running or (cpu <= self.cpu and gpu <= self.gpu + ROUNDING)

    def check_fits(self, jobs: Iterable[Job]) -> None:
        """Raise ConfigError if no single node has both the CPUs and the GPUs that a job needs.

        Nothing is checked if `nodes` is empty.
        """
        for job in jobs if self.nodes else ():
            gpu = job.cell.config["resources"]["gpu"]
            gpu = job.gpu if gpu == AUTO else max(job.gpu, gpu)
            if not any(job.cpu <= node.cpu and gpu <= node.gpu for node in self.nodes):
                kinds = Counter(f"{node.cpu:g} CPUs and {node.gpu:g} GPUs" for node in self.nodes)
                have = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
                raise ConfigError(
                    f"resources.cpu={job.cpu:g} with resources.gpu={gpu:g}: no node has these; "
                    f"set both to at most what one node has; the nodes have {have}"
                )


def count_slots(config: Mapping[str, Any]) -> tuple[int, str, float]:
    """Count the slots of this machine: how many cells the machine runs at the same time.

    With `resources.gpu: auto`, a cell counts as a whole GPU, although several cells may share a
    GPU. A slot is a CPU slot in two cases: `resources.gpu` is 0; or it is `auto`, and this machine
    has no GPU and runs the cells itself.

    Returns:
        The number of slots, the kind of a slot ("GPU" or "CPU"), and the number of GPUs or CPUs
        that a cell takes.
    """
    resources, gpus = config["resources"], len(provenance.list_gpus())
    has_gpus = gpus > 0 or config["cluster"]["name"] != "local"
    share = float(has_gpus) if resources["gpu"] == AUTO else float(resources["gpu"])
    by_cpu = max(1, int(len(os.sched_getaffinity(0)) // resources["cpu"]))
    if share == 0:
        return by_cpu, "CPU", float(resources["cpu"])
    return max(1, min(by_cpu, int(gpus / share))), "GPU", share


def choose_share(measurement: Measurement) -> float:
    """Compute the share of a GPU that each cell of a measured shape takes.

    The share is 1/k if k cells can use one GPU together. It is rounded down to Ray's resolution, so
    that k shares fit on one GPU and no cell is split over two GPUs. If the memory is unknown, the
    share is 1.
    """
    peak, total = measurement.peak_memory_bytes.get("gpu"), measurement.device_memory_bytes
    if not peak or total is None:
        return 1.0
    together = math.floor(total * (1 - HEADROOM) / peak)
    if measurement.utilisation:
        together = min(together, math.floor(1 / measurement.utilisation))
    return share_equally(together)


def share_equally(together: int) -> float:
    """Return the share of each cell, in (0, 1], if `together` cells use one GPU."""
    return 1.0 if together <= 1 else max(1, RESOLUTION // together) / RESOLUTION


class GpuSharing:
    """The share of a GPU that a cell of each shape takes. One cell of each shape is measured.

    Attributes:
        measuring: The shapes that a job measures now, so that other cells of these shapes wait.
    """

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}
        self.measuring: set[str] = set()

    def prepare_job(self, job: Job, capacity: Capacity) -> Job | None:
        """Return the job with its share of a GPU, or None while another job measures its shape.

        If the shape is not measured yet, the returned job measures it (`is_calibration`).
        """
        gpu, key = job.cell.config["resources"]["gpu"], job.cell.shape
        if gpu != AUTO:
            return replace(job, gpu=max(job.gpu, gpu))
        if capacity.gpu < 1 or job.gpu > 0:
            return job
        if key in self._shares:
            return replace(job, gpu=self._shares[key])
        return None if key in self.measuring else replace(job, gpu=1, is_calibration=True)

    def add_measurement(self, job: Job, result: Mapping[str, Any] | None) -> None:
        """Set the share of the job's shape from `result`; if `result` is None, to a whole GPU."""
        share = 1.0 if result is None else choose_share(Measurement(**result))
        self._shares[job.cell.shape] = share

    def enlarge_share(self, job: Job, capacity: Capacity) -> Job | None:
        """Give more resources to a job that ran out of memory; return None if there are no more.

        The job's share of a GPU is at least doubled, and later cells of its shape get the larger
        share too. A job without a GPU gets twice its CPUs, or all CPUs of the largest node if these
        are fewer. This is done only once for a job.
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
