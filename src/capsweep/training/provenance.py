"""Where a number comes from: code, versions, hardware, data, command. Importing it is cheap."""

import contextlib
import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from capsweep.config import code_identity, package_files
from capsweep.config.cell import Cell
from capsweep.tracking import content
from capsweep.tracking.content import Labels

PACKAGES = "torch torchvision pytorch-lightning torchmetrics hydra-core numpy h5py ray wandb"
# Overrides that say where it ran: they decide no number, and a published ledger tells nobody.
LOCAL_OVERRIDES = ("places.", "cluster.", "cluster=", "logger.entity=")
# Files of GPU drivers: NVIDIA's, AMD's, and NVIDIA's inside of WSL.
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def describe_run(cell: Cell, labels: Labels) -> dict[str, Any]:
    """The provenance of a cell that is about to run in this process."""
    from capsweep.training import build, devices  # they import torch

    config = cell.config
    device = devices.choose_device(config)
    layout = "last" if build.is_channels_last(config, device.type) else "first"
    dataset, routing, trainer = config["dataset"], config["routing"], config["trainer"]
    overrides = [text for text in cell.overrides if not text.startswith(LOCAL_OVERRIDES)]
    return {
        "signature": cell.signature,
        "science": cell.science,
        "command": Cell(config, tuple(overrides)).command,
        "overrides": overrides,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "code": {
            **package_files.describe_code(),
            "numerics": code_identity.hash_numerics(config),
            "package": code_identity.hash_package(),
        },
        "versions": list_versions(),
        "hardware": describe_hardware(),
        # Of shards the manifest's, else hashes of official files.
        "fingerprint": (
            dataset["shards"]["fingerprint"] if "shards" in dataset else dataset["reader"]["sha256"]
        ),
        # How the numbers are computed, as far as that changes their rounding alone.
        "implementations": {
            **({} if routing is None else {"routing": routing["impl"]}),
            "convolutions": f"{trainer.get('convolution', 'auto')}, channels {layout}",
            "optimizer": "fused" if trainer["fused_optimizer"] else "torch's default",
            "tf32": config["precision"] == "tf32",  # else never: see `devices.prepare_device`
        },
        "logistics": {key: config[key] for key in ("trainer", "resources", "logger")},
        "tracking": content.describe_tracking(cell, labels),
    }


@cache
def list_versions() -> dict[str, str | None]:
    """Versions of the interpreter and of what computes the numbers."""
    return {"python": platform.python_version(), **{n: find_version(n) for n in PACKAGES.split()}}


def find_version(package: str) -> str | None:
    """Return the version of a package; None where it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


@cache
def list_gpus() -> list[str]:
    """The GPUs that torch sees. Where no driver of a GPU is, torch need not be imported."""
    if not any(Path(driver).exists() for driver in DRIVERS):
        return []
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


@cache
def describe_hardware() -> dict[str, Any]:
    """Return processor, cores, bytes of memory, GPUs, and the vector instructions of torch."""
    import torch

    return {
        "processor": _read_processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": list_gpus(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def name_hardware() -> str:
    """Return what decides the speed of a cell here, for people and for comparison."""
    gpus = list_gpus()
    return gpus[0] if gpus else _read_processor() or "unknown"


@cache
def _read_processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
