"""The machine that a benchmark runs on: its device, clock, memory and load."""

import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import torch

from capsweep.config import code_identity, package_files
from capsweep.training import provenance

THREADS = 2  # of the bars: two cores


def get_device() -> torch.device:
    """A GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def is_gpu() -> bool:
    """Whether the benchmarks run on a GPU."""
    return get_device().type == "cuda"


def reason_to_skip() -> str | None:
    """Why a bar for two cores is not judged here; None where it is."""
    return f"the bar is for {THREADS} cores, this is a GPU" if is_gpu() else None


def _wait_for_gpu() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def time_call(call: Callable[[], object]) -> float:
    """Seconds that one call takes, its work on the device included."""
    _wait_for_gpu()
    started = time.perf_counter()
    call()
    _wait_for_gpu()
    return time.perf_counter() - started


def read_conditions() -> dict[str, Any]:
    """Device, load, code and settings, read before the benchmark itself loads the machine."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "device": get_device().type,
        "threads": THREADS,
        "load": os.getloadavg()[0],
        "hardware": provenance.describe_hardware(),
        "versions": provenance.list_versions(),
        "code": {**package_files.describe_code(), "package": code_identity.hash_package()},
    }


def describe_conditions(conditions: Mapping[str, Any]) -> str:
    """In one line, for people; the JSON has the rest."""
    hardware, code = conditions["hardware"], conditions["code"]
    commit = code["commit"][:12] if code["commit"] else f"{code['package']} of no checkout"
    commit += ", changed" if code["dirty"] else ""
    processor = f"{hardware['processor']} with {hardware['capability']}"
    devices = ", ".join([*hardware["gpus"], processor])
    return (
        f"{conditions['when'][:10]}, code {commit}, {devices}, {hardware['cores']} cores, "
        f"load {conditions['load']:.2f}, torch {conditions['versions']['torch']}"
    )
