"""The processor, the memory and the GPUs of this machine."""

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

# Files of GPU drivers: NVIDIA's, AMD's, and NVIDIA's inside of WSL.
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


@cache
def gpu_names() -> list[str]:
    """The GPUs that torch sees. Where no driver of a GPU is, torch need not be imported."""
    if not any(Path(driver).exists() for driver in DRIVERS):
        return []
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


@cache
def describe_hardware() -> dict[str, Any]:
    """Processor, cores, memory in bytes, GPUs."""
    return {
        "processor": _read_processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": gpu_names(),
    }


def name_hardware(devices: int = 1) -> str:
    """What decides the speed of a cell on so many devices, for people and for comparison."""
    gpus = gpu_names()
    one = gpus[0] if gpus else describe_hardware()["processor"] or "unknown"
    return one if devices == 1 else f"{devices} x {one}"


def _read_processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.processor()
