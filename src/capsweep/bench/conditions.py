"""Under what a benchmark ran: machine, versions, code, threads, allocator."""

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from capsweep.bench import device
from capsweep.config import checkout
from capsweep.training import provenance

BUSY = 0.2  # cores used by others, from which they are in the way
STAT = Path("/proc/stat")


def before() -> dict[str, Any]:
    """What the command found, before it loaded the machine itself and libraries added settings."""
    return {
        "settings": device.settings(),
        "cores_in_use": cores_in_use(),
    }


def cores_in_use(seconds: float = 0.5) -> float | None:
    """How many cores others use while this process sleeps; None on a system that does not say.

    The load average would still count what this process has just done.
    """
    if not STAT.exists():
        return None
    first = _ticks()
    time.sleep(seconds)
    idle, total = (after - before for after, before in zip(_ticks(), first, strict=True))
    return round((os.cpu_count() or 1) * (1 - idle / max(total, 1)), 2)


def _ticks() -> tuple[int, int]:
    """Idle, waiting for disks included, and altogether."""
    ticks = [int(field) for field in STAT.read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def now(found: Mapping[str, Any]) -> dict[str, Any]:
    """Of this process, at this moment. found: `before` it did anything."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "device": device.device().type,
        "threads": device.THREADS,
        **found,
        "hardware": provenance.hardware(),
        "versions": provenance.versions(),
        "code": checkout.code(),
    }


def tf32() -> dict[str, bool]:
    """Whether a GPU may round float32 to TF32: as the last candidate left it."""
    return {
        "products": bool(torch.backends.cuda.matmul.allow_tf32),
        "convolutions": bool(torch.backends.cudnn.allow_tf32),
    }


def told(found: Mapping[str, Any]) -> str:
    """In one paragraph, for people."""
    hardware, code, versions = found["hardware"], found["code"], found["versions"]
    commit = (code["commit"] or "of no checkout")[:12] + (", changed" if code["dirty"] else "")
    gpus = f"{', '.join(hardware['gpus'])}; " if hardware["gpus"] else ""
    rounded = [name for name, rounds in found["tf32"].items() if rounds]
    rounding = f" TF32: {', '.join(rounded) or 'off'}." if found["device"] == "cuda" else ""
    used = found["cores_in_use"]
    others = "unknown" if used is None else f"{used:g} cores"
    busy = ", BUSY: threads wait for others, so this says little" if (used or 0) > BUSY else ""
    set_by_hand = ", ".join(f"{name}={value}" for name, value in found["settings"].items())
    return (
        f"{found['when']}, code {commit}. {gpus}{hardware['processor']}, {hardware['cores']} cores "
        f"({hardware['capability']}), {hardware['memory_bytes'] / 2**30:.0f} GiB; "
        f"{found['threads']} threads; used by others: {others}{busy}. "
        f"torch {versions['torch']}, Python {versions['python']}.{rounding} One allocator for all "
        f"candidates: the platform's default, settings from outside: {set_by_hand or 'none'}."
    )
