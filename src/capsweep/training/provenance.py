"""Where a number comes from: code, versions, hardware, data, command."""

import importlib.metadata
import platform
from datetime import UTC, datetime
from functools import cache
from typing import Any

import torch

from capsweep.config import code_identity, package_files
from capsweep.config.cell import Cell
from capsweep.tracking import content
from capsweep.tracking.labels import Labels
from capsweep.training import hardware as machine

PACKAGES = (
    "torch",
    "torchvision",
    "pytorch-lightning",
    "torchmetrics",
    "hydra-core",
    "numpy",
    "h5py",
    "ray",
    "wandb",
)


def describe_run(cell: Cell, labels: Labels) -> dict[str, Any]:
    """The provenance of a cell that is about to run in this process.

    Raises CodeChangedError where its code cannot be told.
    """
    code_identity.check_imported()
    return {
        "signature": cell.signature,
        "command": cell.command,
        "overrides": list(cell.overrides),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "code": {
            **package_files.describe_code(),
            "numerics": code_identity.numerics(cell.config),
            "package": code_identity.package(),
        },
        "versions": list_versions(),
        "hardware": describe_hardware(),
        "fingerprint": read_fingerprint(cell),
        "implementations": list_implementations(cell),
        "logistics": {key: cell.config[key] for key in ("trainer", "resources", "logger")},
        "tracking": content.section(cell, labels),
    }


def read_fingerprint(cell: Cell) -> Any:
    """What identifies the data: the manifest's of shards, else hashes of official files."""
    dataset = cell.config["dataset"]
    return dataset["shards"]["fingerprint"] if "shards" in dataset else dataset["reader"]["sha256"]


def list_implementations(cell: Cell) -> dict[str, Any]:
    """How the numbers are computed, as far as that changes their rounding alone."""
    routing, trainer = cell.config["routing"], cell.config["trainer"]
    return {
        **({} if routing is None else {"routing": routing["impl"]}),
        "convolutions": "channels last",
        "optimizer": "fused" if trainer["fused_optimizer"] else "torch's default",
        "compile": trainer["compile"],
        "tf32": False,  # never: see assemble.without_tf32
    }


@cache
def list_versions() -> dict[str, str | None]:
    """Versions of the interpreter and of what computes the numbers."""
    return {"python": platform.python_version(), **{name: _find_version(name) for name in PACKAGES}}


def _find_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def describe_hardware() -> dict[str, Any]:
    """Processor, cores, memory, GPUs, and the vector instructions that torch uses."""
    return {**machine.describe_hardware(), "capability": torch.backends.cpu.get_cpu_capability()}
