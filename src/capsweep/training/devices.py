"""The device that trains a cell, and the threads, memory and rounding of this process."""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from capsweep.errors import ConfigError

PROCESS = Path("/proc/self")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # constants of malloc.h
LARGEST_BLOCK, LARGEST_INT = 2**25, 2**31 - 1


def choose_device(config: Mapping[str, Any]) -> torch.device:
    """Return the device of this node that trains a cell: a GPU or the processor."""
    accelerator = config["trainer"]["accelerator"]
    on_gpu = accelerator == "gpu" or (accelerator == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if on_gpu else "cpu")


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Set torch's number of processor threads for a `with` block, then restore the old number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def prepare_device(config: Mapping[str, Any]) -> None:
    """Check that this node has the device that a cell needs, and allow or forbid TF32.

    A cell with `precision` "tf32" multiplies float32 numbers on the GPU in TF32. For all other
    cells, TF32 is forbidden.

    Raises:
        ConfigError: If `precision` is "tf32" and the device cannot compute with TF32. Also if the
            cell needs a GPU and this process sees no GPU.
    """
    is_rounded = config["precision"] == "tf32"
    device = choose_device(config)
    if is_rounded and not has_tf32(device):
        raise ConfigError(
            "precision=tf32 needs an NVIDIA GPU of compute capability 8.0 or more, and this cell "
            "has none; set precision=32 or precision=bf16-mixed"
        )
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "trainer.accelerator=gpu: this process sees no GPU; set resources.gpu=1 on a node that "
            "has one, or trainer.accelerator=auto"
        )
    allow_tf32(is_rounded)


def allow_tf32(is_allowed: bool) -> None:
    """Set whether this process may use TF32 for products of float32 numbers on a GPU.

    By default, torch allows TF32 for convolutions and forbids TF32 for matrix products. This
    function sets both switches. It is called for each cell, because a process trains many cells.
    """
    torch.backends.cuda.matmul.allow_tf32 = is_allowed
    torch.backends.cudnn.allow_tf32 = is_allowed


def has_tf32(device: torch.device) -> bool:
    """Return whether a device can multiply matrices in TF32."""
    if device.type != "cuda" or torch.version.cuda is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def keep_freed_memory() -> None:
    """Let this process keep freed memory blocks of up to 32 MiB and use them again.

    By default glibc returns freed blocks to the kernel, and the kernel fills every page with zeros
    before the process gets the page again. This takes up to a third of the time of a training step
    if the network is small. 32 MiB is the largest block size that glibc allows here. With an
    allocator other than glibc's, this function does nothing.
    """
    if (set_option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        set_option(M_MMAP_THRESHOLD, LARGEST_BLOCK)
        set_option(M_TRIM_THRESHOLD, LARGEST_INT)


def start_memory_peak() -> None:
    """Start a new measurement of peak memory, for `read_memory_peak`.

    Freed memory is first returned to the system, because it would otherwise count as used.
    """
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        (PROCESS / "clear_refs").write_text("5", encoding="utf-8")  # Linux: resets VmHWM


def read_memory_peak() -> dict[str, int | None]:
    """Return the peak memory since `start_memory_peak`, in bytes.

    Returns:
        Two values. "process" is the peak of the resident memory; None: unknown. "gpu" is the peak
        of the memory that torch reserved on the GPU; None: no GPU. Reserved memory includes the
        memory of freed tensors and of captured steps, because no other process can use this memory.
    """
    gpu = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else None
    with suppress(OSError):
        for line in (PROCESS / "status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return {"process": int(line.split()[1]) * 1024, "gpu": gpu}
    return {"process": None, "gpu": gpu}


def read_taken_memory() -> int:
    """Return the peak GPU memory of this process in bytes.

    The result is the peak of the memory that torch reserved, plus the memory that CUDA and
    libraries use for contexts, kernels and graphs. The result is right only if no other process
    uses the GPU.
    """
    free, total = torch.cuda.mem_get_info()
    beside = total - free - torch.cuda.memory_reserved()
    return torch.cuda.max_memory_reserved() + beside
