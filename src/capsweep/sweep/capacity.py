"""What an executor can run at once: the CPUs and GPUs of its nodes."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capsweep.errors import ConfigError
from capsweep.sweep.job import AUTO, Job
from capsweep.training import provenance

ROUNDING = 1e-3  # of shares, which Ray counts in ten-thousandths


@dataclass(frozen=True)
class Node:
    """The CPUs and GPUs of one node."""

    cpu: float = 1
    gpu: float = 0


@dataclass(frozen=True)
class Capacity:
    """What an executor can run at once, or may grow to. The default runs one cell at a time.

    nodes: empty for an executor that is one process, which takes what it finds.
    """

    cpu: float = 1
    gpu: float = 0
    nodes: tuple[Node, ...] = ()

    @classmethod
    def of_nodes(cls, nodes: Sequence[Node]) -> "Capacity":
        """The sum of some nodes."""
        return cls(sum(node.cpu for node in nodes), sum(node.gpu for node in nodes), tuple(nodes))

    @property
    def largest_cpu(self) -> float:
        """CPUs of the largest node."""
        return max((node.cpu for node in self.nodes), default=self.cpu)

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
    """How many cells run at once on this machine, and the share that each takes of a GPU or CPU.

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
