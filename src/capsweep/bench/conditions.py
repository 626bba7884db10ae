"""Under what a benchmark ran: machine, versions, code, threads, allocator."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import torch

from capsweep.bench import device
from capsweep.training import provenance


def now(settings: Mapping[str, str]) -> dict[str, Any]:
    """Of this process, at this moment. settings: of the environment that it was started in, before
    libraries added theirs.
    """
    return {
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "device": device.device().type,
        "threads": device.THREADS,
        "settings": dict(settings),
        "load": [round(load, 2) for load in os.getloadavg()],
        "hardware": provenance.hardware(),
        "versions": provenance.versions(),
        "code": provenance.code(),
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
    tf32 = f" TF32: {', '.join(rounded) or 'off'}." if found["device"] == "cuda" else ""
    set_by_hand = ", ".join(f"{name}={value}" for name, value in found["settings"].items())
    return (
        f"{found['when']}, code {commit}. {gpus}{hardware['processor']}, {hardware['cores']} cores "
        f"({hardware['capability']}), {hardware['memory_bytes'] / 2**30:.0f} GiB; "
        f"{found['threads']} threads; load when it began {found['load'][0]:g}. "
        f"torch {versions['torch']}, Python {versions['python']}.{tf32} One allocator for all "
        f"candidates: the platform's default, settings from outside: {set_by_hand or 'none'}."
    )
