"""Rules of the devices that train one cell."""

from collections.abc import Mapping
from typing import Any

from capsweep.config import bounds
from capsweep.config.cell import get
from capsweep.errors import ConfigError


def wanted(config: Mapping[str, Any]) -> int:
    """The devices that a configuration asks for; auto: as many as whole GPUs, where those are
    several.
    """
    devices = config["trainer"]["devices"]
    if devices != "auto":
        return devices
    gpu = config["resources"]["gpu"]
    return int(gpu) if gpu != "auto" and gpu > 1 else 1


def check(config: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming the key and the cure, for devices that cannot be had."""
    gpu, devices = get(config, "resources.gpu"), get(config, "trainer.devices")
    if gpu != "auto" and not (bounds.is_real(gpu) and gpu >= 0 and (gpu < 1 or gpu == int(gpu))):
        raise ConfigError(f"resources.gpu must be auto, a fraction or a whole number, got {gpu}")
    if devices != "auto" and not (type(devices) is int and devices >= 1):
        raise ConfigError(f"trainer.devices must be auto or a whole number >= 1, got {devices}")
    count, accelerator = wanted(config), get(config, "trainer.accelerator")
    whole = 1 if gpu == "auto" and accelerator == "gpu" else gpu
    if count > 1 and accelerator != "cpu" and whole != "auto" and 0 < whole < count:
        raise ConfigError(
            f"trainer.devices={count} needs as many GPUs, and resources.gpu={gpu}; set "
            f"resources.gpu={count}, or trainer.accelerator=cpu"
        )
    if config["batch_size"] < count:
        raise ConfigError(
            f"batch_size={config['batch_size']} is over all devices together, and "
            f"{count} devices are to share it; set trainer.devices={config['batch_size']} or less"
        )
