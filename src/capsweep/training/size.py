"""What a cell costs: the size of its network, computed, and the times of its steps, measured."""

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from capsweep.config import code_identity, validation
from capsweep.storage import disk_cache


@dataclass(frozen=True)
class Size:
    """flops: of the forward pass of one image, its reconstruction included where there is one.

    Multiplications and additions of matrix products and convolutions; nothing element-wise.
    """

    parameters: int
    flops: int


@dataclass(frozen=True)
class Measurement:
    """Seconds of one training step and of evaluating one image, seconds before the first step, and
    peak memory in bytes ("process" and "gpu", None where unknown). utilisation: of the GPU, 0..1.
    """

    shape: str
    hardware: str
    seconds_per_step: float
    evaluation_seconds_per_image: float
    startup_seconds: float
    peak_memory_bytes: dict[str, int | None]
    utilisation: float | None
    device_memory_bytes: int | None
    steps: int

    @property
    def name(self) -> str:
        """The file of the ledger that holds it."""
        digest = hashlib.sha256(self.hardware.encode()).hexdigest()[:8]
        return f"measurements/{self.shape}-{digest}.json"


def network_size(config: Mapping[str, Any]) -> Size:
    """The size of a canonical configuration's network, which is built for it without memory.

    Built once on a machine: after that torch is not even imported. Raises ConfigError naming the
    key of a target that may not be called, sizes that do not fit, or an optimiser that cannot be
    had as it is asked for.
    """

    def measure() -> dict[str, Any]:
        from capsweep.training import layers

        return asdict(layers.measure_size(config))

    return Size(**disk_cache.compute_once("sizes", _cache_key(config), measure))


def _cache_key(config: Mapping[str, Any]) -> str:
    """All that decides the size, and whether the network can be built."""
    dataset = {
        key: config["dataset"].get(key)
        for key in ("image_shape", "num_classes", "labels_per_image")
    }
    libraries = ("torch", "torchvision", "pytorch-lightning")  # a `_target_` may be theirs
    code = [code_identity.package(), *map(importlib.metadata.version, libraries)]
    targets = sorted(str(target) for _, target in validation.find_targets(config))
    fused = config["trainer"]["fused_optimizer"]
    optimizer = config["optim"]["optimizer"]["_target_"]
    decides = [code, config["model"], config["routing"], dataset, targets, optimizer, fused]
    return json.dumps(decides, sort_keys=True)
