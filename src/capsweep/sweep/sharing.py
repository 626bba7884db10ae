"""How much of a GPU a cell takes: what its configuration says, or what was measured."""

from dataclasses import replace
from typing import Any

from capsweep.config.shape import shape
from capsweep.errors import ConfigError
from capsweep.sweep import packing
from capsweep.sweep.job import Job
from capsweep.training.measurement import Measurement

AUTO = "auto"


class Sharing:
    """Shares by shape. With `resources.gpu: auto` every distinct shape is measured alone first."""

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}
        self._measuring: set[str] = set()

    def prepare(self, job: Job, gpus: float) -> Job | None:
        """The job with what it is to be given, or a job that measures for it; None: not yet."""
        wanted = job.cell.config["resources"]["gpu"]
        if wanted != AUTO or gpus < 1 or job.gpu > 0:
            return replace(job, gpu=job.gpu if wanted == AUTO else max(job.gpu, wanted))
        key = shape(job.cell)
        if key in self._shares:
            return replace(job, gpu=self._shares[key])
        if key in self._measuring:
            return None
        self._measuring.add(key)
        return replace(job, gpu=1, measures=True)

    def measured(self, job: Job, measurement: dict[str, Any]) -> None:
        """A shape was measured; raises nothing: what does not fit is found when it runs."""
        known = Measurement(**measurement)
        try:
            share = packing.share(known, known.device_memory_bytes)
        except ConfigError:
            share = 1.0
        self._shares[shape(job.cell)] = share

    def unmeasurable(self, job: Job) -> None:
        """Measuring failed: the cells of this shape take a whole GPU."""
        self._shares[shape(job.cell)] = 1.0

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
