"""The resources of this machine, in cells at once."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capsweep.training import hardware


@dataclass(frozen=True)
class Slots:
    """`count` cells run at once; each takes `share` of a `kind` ("GPU" or "CPU")."""

    count: int
    kind: str
    share: float


def at_hand(resources: Mapping[str, Any]) -> Slots:
    """Slots of this machine for cells of some resources. gpu=auto counts whole GPUs, which is the
    most that cells take: several may share one.
    """
    gpus, cpus = len(hardware.gpu_names()), len(os.sched_getaffinity(0))
    by_cpu = max(1, int(cpus // resources["cpu"]))
    gpu = resources["gpu"]
    share = (1.0 if gpus else 0.0) if gpu == "auto" else float(gpu)
    if share == 0:
        return Slots(by_cpu, "CPU", float(resources["cpu"]))
    return Slots(max(1, min(by_cpu, int(gpus / share))), "GPU", share)
