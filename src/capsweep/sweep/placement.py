"""Which cell fits where: what nodes can hold, and whom a cell of several devices holds back.

A cell is one bundle, so it is on one node; Ray chooses which. What is decided here is whether it
may be handed to Ray at all.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from capsweep.errors import ConfigError
from capsweep.sweep.job import Job

Seconds = Callable[[Job], float | None]
ALMOST = 1e-3  # shares are rounded to what Ray counts


@dataclass(frozen=True)
class Node:
    """What one node has. memory: bytes that may be asked for, 0: unknown. kind: of its GPUs."""

    cpu: float = 1
    gpu: float = 0
    memory: float = 0
    kind: str | None = None

    def holds(self, job: Job) -> bool:
        """Whether the job could run here, were the node empty."""
        return job.cpu <= self.cpu and job.gpu <= self.gpu


@dataclass(frozen=True)
class Capacity:
    """What an executor can run at once, or may grow to. One cell after the other: one CPU slot, no
    GPU. nodes: what it is made of, empty where it is one process, which takes what it finds. gone:
    kinds of GPUs of which every node was lost.
    """

    cpu: float = 1
    gpu: float = 0
    nodes: tuple[Node, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[str | None, ...]:
        """Kinds of GPUs; one None where no node says."""
        told = [node.kind for node in self.nodes if node.gpu > 0 and node.kind is not None]
        return tuple(dict.fromkeys(told)) or (None,)

    @property
    def present(self) -> tuple[str | None, ...]:
        """Kinds that are there; where none is, all of them: one must come back."""
        return tuple(kind for kind in self.kinds if kind not in self.gone) or self.kinds

    def lacks(self, job: Job) -> bool:
        """Whether a job measures on a kind that is gone, which cells do without."""
        return job.measures and job.kind in self.gone and job.kind not in self.present

    @property
    def largest_cpu(self) -> float:
        """CPUs of the largest node."""
        return max((node.cpu for node in self.nodes), default=self.cpu)

    def memory_per_gpu(self) -> float | None:
        """Host memory beside each GPU where that is least, None where no node says."""
        known = [node.memory / node.gpu for node in self.nodes if node.gpu > 0 and node.memory > 0]
        return min(known, default=None)


def check(jobs: Iterable[Job], capacity: Capacity) -> None:
    """Raise ConfigError, naming the key and what the nodes have, for a job that none can hold."""
    if not capacity.nodes:
        return
    for job in jobs:
        gpu = job.cell.config["resources"]["gpu"]
        wanted = job if gpu == "auto" else _with_gpu(job, gpu)
        if any(node.holds(wanted) for node in capacity.nodes):
            continue
        lacks_gpu = all(wanted.gpu > node.gpu for node in capacity.nodes)
        name = "resources.gpu" if lacks_gpu else "resources.cpu"
        value = f"{wanted.gpu if lacks_gpu else wanted.cpu:g}"
        if not lacks_gpu and wanted.gpu > 0:
            value += f" with resources.gpu={wanted.gpu:g}"
        raise ConfigError(
            f"{name}={value}: no node has so many, and a cell is on one node; the nodes have "
            f"{_told(capacity.nodes)}; lower it, or use larger nodes"
        )


def _with_gpu(job: Job, gpu: float) -> Job:
    return replace(job, gpu=max(job.gpu, gpu))


def _told(nodes: Sequence[Node]) -> str:
    kinds: dict[str, int] = {}
    for node in nodes:
        text = f"{node.cpu:g} CPUs and {node.gpu:g} GPUs"
        kinds[text] = kinds.get(text, 0) + 1
    return ", ".join(f"{count} x {text}" for text, count in kinds.items())


def has_room(job: Job, running: Sequence[Job], capacity: Capacity) -> bool:
    """Whether the job would start at once, nodes taken together."""
    cpu, gpu = _sum("cpu", running) + job.cpu, _sum("gpu", running) + job.gpu
    return not running or (cpu <= capacity.cpu and gpu <= capacity.gpu + ALMOST)


def held_back(
    job: Job, large: Job, running: Sequence[Job], capacity: Capacity, left: Seconds
) -> bool:
    """Whether a job must wait because a larger one, of several devices, waits.

    It need not where it takes nothing from the larger one: no GPU, only GPUs of nodes that cannot
    hold that one, or only the time until enough GPUs are free for it ("backfilling": Lifka, "The
    ANL/IBM SP scheduling system", 1995).

    left: seconds that a job is estimated to run still, None: unknown.
    """
    if job.gpu == 0 or job.gpu >= large.gpu:
        return False
    small = sum(node.gpu for node in capacity.nodes if not node.holds(large))
    if _sum("gpu", [j for j in running if j.gpu < large.gpu]) + job.gpu <= small + ALMOST:
        return False
    running = [other for other in running if other is not large]
    own, until = left(job), _free_after(large, running, capacity, left)
    in_time = own is not None and until is not None and own <= until
    return not (in_time and has_room(job, running, capacity))


def _free_after(
    large: Job, running: Sequence[Job], capacity: Capacity, left: Seconds
) -> float | None:
    """Seconds until as many GPUs are free as the larger job needs; None where nobody knows."""
    gpus = [job for job in running if job.gpu > 0]
    known = [(seconds, job.gpu) for job in gpus if (seconds := left(job)) is not None]
    free = capacity.gpu - _sum("gpu", gpus)
    for seconds, gpu in sorted(known):
        if (free := free + gpu) >= large.gpu - ALMOST:
            return seconds
    return None


def _sum(field: str, jobs: Iterable[Job]) -> float:
    return sum(getattr(job, field) for job in jobs)
