"""How much of a GPU a cell takes: what its configuration says, or what was measured."""

from dataclasses import dataclass, replace
from typing import Any

from capsweep.config.shape import shape
from capsweep.errors import ConfigError
from capsweep.sweep import packing
from capsweep.sweep.job import Job
from capsweep.sweep.placement import Capacity
from capsweep.training.size import Measurement

AUTO = "auto"


@dataclass(frozen=True)
class Share:
    """Of one GPU, and bytes of its host's memory."""

    gpu: float
    memory: int


class Sharing:
    """Shares by shape. With `resources.gpu: auto` every distinct shape is measured alone first, on
    each kind of GPU there is.

    A kind of which every node is lost is not waited for: cells then take what the others say, and
    what was measured there before.

    A share is of one device, and Ray, not we, chooses the device: so a shape's share is the largest
    of all kinds, which is that of the smallest device. Kinds that cannot hold it at all are left
    out: the cell then runs on the kind that holds most of it.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, str | None], Share | None] = {}
        self._measuring: set[tuple[str, str | None]] = set()
        self._awaited: set[str | None] = set()  # kinds of which a measurement has no worker yet

    def prepare(self, job: Job, capacity: Capacity) -> Job | None:
        """The job with what it is to be given, or a job that measures for it; None: not yet."""
        wanted = job.cell.config["resources"]["gpu"]
        if wanted != AUTO or capacity.gpu < 1 or job.gpu > 0:
            return replace(job, gpu=job.gpu if wanted == AUTO else max(job.gpu, wanted))
        key, there = shape(job.cell), capacity.present
        kinds = [kind for kind in capacity.kinds if kind in there or (key, kind) in self._found]
        if len(capacity.kinds) == 1:
            kinds = [None]  # whatever it is, also before the first node of a cluster is there
        for kind in kinds:
            # One at a time waits for a kind: more would fill an executor if that never comes.
            if (key, kind) not in self._measuring and (kind is None or kind not in self._awaited):
                return replace(job, gpu=1, measures=True, kind=kind)
        if any((key, kind) not in self._found for kind in kinds):
            return None
        held = {kind: share for kind in kinds if (share := self._found[key, kind]) is not None}
        if len(held) == len(kinds) or not held:
            gpu = max((share.gpu for share in held.values()), default=1.0)
            memory = max((share.memory for share in held.values()), default=0)
            return replace(job, gpu=gpu, memory=memory)
        kind = min([k for k in held if k in there] or held, key=lambda name: held[name].gpu)
        return replace(job, gpu=held[kind].gpu, memory=held[kind].memory, kind=kind)

    def begins(self, job: Job) -> None:
        """A job that measures was given to the executor: others of its shape wait for it."""
        self._measuring.add(_key(job))
        self._awaited.add(job.kind)

    def started(self, job: Job) -> None:
        """A job that measures has a worker, or needs none any more."""
        self._awaited.discard(job.kind)

    def measured(self, job: Job, measurement: dict[str, Any], capacity: Capacity) -> None:
        """A shape was measured; raises nothing: what does not fit is found when it runs."""
        self.started(job)
        known = Measurement(**measurement)
        memory = packing.host_memory(known)
        try:
            gpu = packing.share(known, known.device_memory_bytes)
        except ConfigError:
            gpu = 1.0
        beside = capacity.memory_per_gpu()
        if beside is not None:  # a device has room for more cells than the host beside it
            gpu = max(gpu, packing.share_of_host(memory, beside))
        self._found[_key(job)] = Share(gpu, memory if beside is not None else 0)

    def again(self, job: Job) -> None:
        """Its worker was lost: the next of its shape measures."""
        self.started(job)
        self._measuring.discard(_key(job))

    def unmeasurable(self, job: Job) -> None:
        """Measuring failed: cells of this shape are kept off that kind, or, where it is the only
        one, take a whole GPU.
        """
        self.started(job)
        self._found[_key(job)] = None

    def larger(self, job: Job, cpus: float) -> Job | None:
        """The job with its next larger share, once; None when it had that, or all there is."""
        if job.facts.get("larger_share"):
            return None
        facts = {**job.facts, "larger_share": True}
        if job.gpu > 0:
            share = packing.larger(job.gpu)
            return None if share is None else replace(job, gpu=share, facts=facts)
        twice = min(2 * job.cpu, cpus)
        return replace(job, cpu=twice, facts=facts) if twice > job.cpu else None


def _key(job: Job) -> tuple[str, str | None]:
    return shape(job.cell), job.kind
