"""The provenance of a cell: code, versions, hardware, data and command.

Importing this module does not import torch.
"""

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
# Overrides that name folders, clusters and accounts. These overrides do not change results. They
# are left out of the provenance, so that a published ledger does not contain them.
LOCAL_OVERRIDES = ("places.", "cluster.", "cluster=", "logger.entity=")
# Device files of GPU drivers: NVIDIA's, AMD's, and NVIDIA's inside WSL.
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def describe_run(cell: Cell, labels: Labels) -> dict[str, Any]:
    """Return the provenance of a cell that this process is about to run.

    Args:
        cell: The cell.
        labels: The labels of the cell's W&B run.
    """
    from capsweep.training import build, devices  # these import torch

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
        # For shards, the fingerprint of their manifest; otherwise the hashes of the official files.
        "fingerprint": (
            dataset["shards"]["fingerprint"] if "shards" in dataset else dataset["reader"]["sha256"]
        ),
        # These choices change results only by rounding.
        "implementations": {
            **({} if routing is None else {"routing": routing["impl"]}),
            "convolutions": f"{trainer.get('convolution', 'auto')}, channels {layout}",
            "optimizer": "fused" if trainer["fused_optimizer"] else "torch's default",
            "tf32": config["precision"] == "tf32",  # see `devices.prepare_device`
            "device": device.type,
            "threads": trainer["threads"],
        },
        "logistics": {key: config[key] for key in ("trainer", "resources", "logger")},
        "tracking": content.describe_tracking(cell, labels),
    }


@cache
def list_versions() -> dict[str, str | None]:
    """Return the versions of Python and of the main packages; None: a package is not installed."""
    return {"python": platform.python_version(), **{n: find_version(n) for n in PACKAGES.split()}}


def find_version(package: str) -> str | None:
    """Return the version of a package; None if the package is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


@cache
def list_gpus() -> list[str]:
    """List the names of the GPUs that torch sees.

    If there is no GPU driver, the list is empty, and torch is not imported.
    """
    if not any(Path(driver).exists() for driver in DRIVERS):
        return []
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


@cache
def describe_hardware() -> dict[str, Any]:
    """Describe this machine: processor, cores, memory, GPUs and vector instructions."""
    import torch

    return {
        "processor": _read_processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": list_gpus(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def name_hardware() -> str:
    """Return the name of the first GPU, or of the processor if this machine has no GPU.

    Estimates of a cell's time prefer times that were measured on hardware of the same name.
    """
    gpus = list_gpus()
    return gpus[0] if gpus else _read_processor() or "unknown"


@cache
def _read_processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
