"""How many cells share one GPU: as many as its memory and its idle time allow."""

import math

from capsweep.errors import ConfigError
from capsweep.training.size import Measurement

RESOLUTION = 10_000  # Ray counts shares in ten-thousandths
HEADROOM = 0.1  # of the device's memory, for fragmentation
HOST_HEADROOM = 0.25  # of the process's peak: a whole run holds predictions and checkpoints too
CONTEXT = 600 * 2**20  # bytes that a process takes on a device before its first tensor


def share(measurement: Measurement, device_memory_bytes: int | None) -> float:
    """The share of one device that a cell of this shape takes: 1/k, rounded down to what Ray
    counts, so that k of them fit and none straddles two devices.

    Raises ConfigError when the cell alone needs more memory than the device has.
    """
    peak = measurement.peak_memory_bytes.get("gpu")
    if not peak or device_memory_bytes is None:
        return 1.0
    usable = device_memory_bytes * (1 - HEADROOM)
    if peak > device_memory_bytes:
        raise ConfigError(
            f"batch_size: a cell needs {peak / 2**30:.1f} GiB and the GPU has "
            f"{device_memory_bytes / 2**30:.1f}; lower it, or use a larger GPU"
        )
    together = max(1, math.floor(usable / (peak + CONTEXT)))
    if measurement.utilisation:
        together = max(1, min(together, math.floor(1 / measurement.utilisation)))
    return _one_of(together)


def host_memory(measurement: Measurement) -> int:
    """Bytes of the host that a cell takes: Ray ends workers of a node that is full."""
    peak = measurement.peak_memory_bytes.get("process") or 0
    return round(peak * (1 + HOST_HEADROOM))


def share_of_host(memory: int, beside: float) -> float:
    """The share of a GPU below which its host would be full; beside: bytes of host per GPU."""
    return _one_of(math.floor(beside / memory)) if memory else 0.0


def larger(share: float) -> float | None:
    """The next share after an out-of-memory, at least twice as much; None when it was whole."""
    return None if share >= 1 else _one_of(math.floor(round(1 / share) / 2))


def _one_of(together: int) -> float:
    if together <= 1:
        return 1.0
    return max(1, RESOLUTION // together) / RESOLUTION
