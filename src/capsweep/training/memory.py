"""Peak memory of one cell, in a process that may have run others before."""

from pathlib import Path

import torch

PROCESS = Path("/proc/self")


def start_peak() -> None:
    """Forget earlier peaks."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        (PROCESS / "clear_refs").write_text("5")  # Linux: resets VmHWM
    except OSError:
        return


def peak() -> dict[str, int | None]:
    """Peak bytes since `start_peak`: resident in the process, and allocated on the GPU."""
    gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    return {"process": _of_process("VmHWM"), "gpu": gpu}


def now() -> dict[str, int | None]:
    """The same, of this moment."""
    gpu = torch.cuda.memory_allocated() if torch.cuda.is_available() else None
    return {"process": _of_process("VmRSS"), "gpu": gpu}


def _of_process(field: str) -> int | None:
    try:
        lines = (PROCESS / "status").read_text().splitlines()
    except OSError:
        return None
    kibibytes = [int(line.split()[1]) for line in lines if line.startswith(f"{field}:")]
    return kibibytes[0] * 1024 if kibibytes else None
