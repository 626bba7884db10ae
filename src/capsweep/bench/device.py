"""Where the benchmarks run, and how time is taken there: the one place that knows of GPUs."""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from capsweep.training.threads import threads as working_with

THREADS = 2  # of the bars: two cores
CPU_MEMORY = 6e9  # bytes that one call may take


def device() -> torch.device:
    """A GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def on_gpu() -> bool:
    """Whether the benchmarks run on one."""
    return device().type == "cuda"


def skipped_on_gpu() -> str | None:
    """Why a bar for two cores is not judged here; None on a CPU, where it is."""
    return f"the bar is for {THREADS} cores, this is a GPU" if on_gpu() else None


def threads(count: int = THREADS) -> AbstractContextManager[None]:
    """So many threads for the processor's part of the work; those of the bars, if not said."""
    return working_with(count)


def wait() -> None:
    """Until the GPU has done what it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(call: Callable[[], object]) -> float:
    """What one call takes, its work on the device included."""
    wait()
    begun = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - begun


def largest_call() -> float:
    """Bytes that one call may need, so that nobody else on the machine is pushed out."""
    return torch.cuda.mem_get_info()[0] / 2 if torch.cuda.is_available() else CPU_MEMORY


def has_amx() -> bool:
    """Whether the processor multiplies matrices of bfloat16 by itself (Linux says so)."""
    try:
        return "amx_bf16" in Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False


def settings() -> dict[str, str]:
    """What decides how memory is allocated and threads run, as far as it was set from outside."""
    told = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "PYTORCH_", "OMP_", "MKL_", "KMP_")
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(told)}
