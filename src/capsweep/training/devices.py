"""The device that trains a cell: its threads, memory and rounding."""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from capsweep.errors import ConfigError

PROCESS = Path("/proc/self")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_BLOCK, LARGEST_INT = 2**25, 2**31 - 1


def choose_device(config: Mapping[str, Any]) -> torch.device:
    """Return the device that trains a cell, on this node."""
    accelerator = config["trainer"]["accelerator"]
    on_gpu = accelerator == "gpu" or (accelerator == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if on_gpu else "cpu")


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Let torch have so many threads on the processor, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def prepare_device(config: Mapping[str, Any]) -> None:
    """Let this process compute products of float32 as `precision` of a cell that it trains says.

    Raises ConfigError where they are to be rounded to TF32, and the device cannot; or where the
    cell is to be trained on a GPU, and this process sees none.
    """
    is_rounded = config["precision"] == "tf32"
    device = choose_device(config)
    if is_rounded and not has_tf32(device):
        raise ConfigError(
            "precision=tf32 needs an NVIDIA GPU of compute capability 8.0 or more, and there is "
            "none for this cell; set precision=32 or precision=bf16-mixed"
        )
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "trainer.accelerator=gpu: this process sees no GPU; set resources.gpu=1 on a node that "
            "has one, or trainer.accelerator=auto"
        )
    allow_tf32(is_rounded)


def allow_tf32(is_allowed: bool) -> None:
    """Let the tensor cores of a GPU round products of float32 to TF32 in this process, or not.

    torch's own default lets convolutions be rounded, and matrix products not. A process runs many
    cells, so it is set for each.
    """
    torch.backends.cuda.matmul.allow_tf32 = is_allowed
    torch.backends.cudnn.allow_tf32 = is_allowed


def has_tf32(device: torch.device) -> bool:
    """Return whether a device multiplies matrices of TF32."""
    if device.type != "cuda" or torch.version.cuda is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def keep_freed_memory() -> None:
    """Let this process keep freed memory, and use it again, in blocks of up to 32 MiB.

    glibc gives it back to the kernel, which fills each new page with zeros: up to a third of a
    small network's step. It keeps no larger blocks; other allocators have no such setting.
    """
    if (set_option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        set_option(M_MMAP_THRESHOLD, LARGEST_BLOCK)
        set_option(M_TRIM_THRESHOLD, LARGEST_INT)


def start_memory_peak() -> None:
    """Forget earlier peaks, and give freed memory back, which would count as used."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        (PROCESS / "clear_refs").write_text("5", encoding="utf-8")  # Linux: resets VmHWM


def read_memory_peak() -> dict[str, int | None]:
    """Return the peak bytes since `start_memory_peak`, resident in the process and reserved on the
    GPU. Others cannot have what is reserved, be it freed or kept by a captured step.
    """
    gpu = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else None
    with suppress(OSError):
        for line in (PROCESS / "status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return {"process": int(line.split()[1]) * 1024, "gpu": gpu}
    return {"process": None, "gpu": gpu}


def read_taken_memory() -> int:
    """Return the bytes of the GPU that this process takes at its peak, which has it alone: what is
    reserved, and what CUDA and libraries have beside that, such as contexts, kernels and graphs.
    """
    free, total = torch.cuda.mem_get_info()
    beside = total - free - torch.cuda.memory_reserved()
    return torch.cuda.max_memory_reserved() + beside
