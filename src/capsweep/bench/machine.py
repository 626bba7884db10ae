"""The machine that a benchmark runs on: its device, clock and memory, and what else it does."""

import ctypes
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from capsweep.config import package_files
from capsweep.training import devices, provenance

THREADS = 2  # of the bars: two cores
BUSY = 0.2  # cores used by other processes, from which they disturb a measurement
STAT = Path("/proc/stat")
# Variables of the environment that decide on memory or threads.
SETTINGS = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "PYTORCH_", "OMP_", "MKL_", "KMP_")


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


def call_in_fresh_process(function: Callable[..., int], *arguments: Any) -> int:
    """What a function of a module returns in a process started for it."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def measure_extra_memory(prepare: Callable[..., Callable[[], object]], *arguments: Any) -> int:
    """Bytes by which a fresh process, or the memory that it allocates on a GPU, grows at its peak
    in the call that `prepare` returns for these arguments.
    """
    return call_in_fresh_process(_prepare_and_measure, prepare, *arguments)


def _prepare_and_measure(prepare: Callable[..., Callable[[], object]], *arguments: Any) -> int:
    with devices.using_threads(THREADS):
        return measure_growth(prepare(*arguments))


def measure_growth(call: Callable[[], object]) -> int:
    """Bytes by which this process, or on a GPU what it has allocated there, grows in one call."""
    # Freed memory that glibc keeps would be used by the call without being seen to grow.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    _wait_for_gpu()
    devices.start_memory_peak()
    kind = "gpu" if is_gpu() else "process"
    before = devices.read_memory()[kind] or 0
    call()
    _wait_for_gpu()
    return max(0, (devices.read_memory_peak()[kind] or 0) - before)


def count_cores_in_use(seconds: float = 0.5) -> float | None:
    """How many cores other processes use while this one sleeps; None where the system does not say.

    The load average would still count what this process has just done.
    """
    if not STAT.exists():
        return None
    first = _read_ticks()
    time.sleep(seconds)
    idle, total = (after - before for after, before in zip(_read_ticks(), first, strict=True))
    return round((os.cpu_count() or 1) * (1 - idle / max(total, 1)), 2)


def _read_ticks() -> tuple[int, int]:
    """Idle, waiting for disks included, and altogether."""
    ticks = [int(field) for field in STAT.read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def read_conditions() -> dict[str, Any]:
    """Device, load, code and settings, before the benchmark itself loads the machine."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "device": get_device().type,
        "threads": THREADS,
        "settings": {
            name: os.environ[name] for name in sorted(os.environ) if name.startswith(SETTINGS)
        },
        "cores_in_use": count_cores_in_use(),
        "hardware": provenance.describe_hardware(),
        "versions": provenance.list_versions(),
        "code": package_files.describe_code(),
    }


def describe_conditions(conditions: Mapping[str, Any]) -> str:
    """In one paragraph, for people."""
    hardware, code, versions = (conditions[key] for key in ("hardware", "code", "versions"))
    commit = (code["commit"] or "of no checkout")[:12] + (", changed" if code["dirty"] else "")
    gpus = f"{', '.join(hardware['gpus'])}; " if hardware["gpus"] else ""
    used = conditions["cores_in_use"]
    others = "unknown" if used is None else f"{used:g} cores"
    busy = ", BUSY: threads wait for others, so this says little" if (used or 0) > BUSY else ""
    settings = ", ".join(f"{name}={value}" for name, value in conditions["settings"].items())
    return (
        f"{conditions['when']}, code {commit}. {gpus}{hardware['processor']}, {hardware['cores']} "
        f"cores ({hardware['capability']}), {hardware['memory_bytes'] / 2**30:.0f} GiB; "
        f"{conditions['threads']} threads; used by others: {others}{busy}. "
        f"torch {versions['torch']}, Python {versions['python']}. One allocator for all "
        f"candidates: the platform's default, settings from outside: {settings or 'none'}."
    )
