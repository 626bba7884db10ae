"""How many devices train one cell, and with how many threads each."""

from collections.abc import Mapping
from typing import Any

import torch

from capsweep.config.device_rules import wanted
from capsweep.errors import ConfigError


def of(config: Mapping[str, Any]) -> int:
    """The devices of this node that train a cell: GPUs, or processes on the processor.

    Raises ConfigError where there are not as many GPUs.
    """
    uses_gpus = on_gpus(config)
    count = wanted(config)
    if config["trainer"]["devices"] == "auto" and not uses_gpus:
        return 1
    there = torch.cuda.device_count() if uses_gpus else count
    if count > there:
        raise ConfigError(
            f"trainer.devices: {count} devices are to train this cell, and this process sees "
            f"{there} GPU{'' if there == 1 else 's'}; set resources.gpu={count} on a node that has "
            f"them, trainer.devices={max(there, 1)}, or trainer.accelerator=cpu"
        )
    return count


def on_gpus(config: Mapping[str, Any]) -> bool:
    """Whether a cell is trained on GPUs, on this node."""
    accelerator = config["trainer"]["accelerator"]
    return accelerator == "gpu" or (accelerator == "auto" and torch.cuda.is_available())


def threads(config: Mapping[str, Any], devices: int) -> int:
    """Of each process, of the threads that a cell may have."""
    return max(1, config["trainer"]["threads"] // devices)
