"""Under what a benchmark ran: machine, versions, code, threads, allocator."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import torch

from capsweep.bench import device
from capsweep.training import provenance

BUSY = 1.0  # load from which others are in the way


def before() -> dict[str, Any]:
    """What the command found, before it loaded the machine itself and libraries added settings."""
    return {
        "settings": device.settings(),
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def now(found: Mapping[str, Any]) -> dict[str, Any]:
    """Of this process, at this moment. found: `before` it did anything."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "device": device.device().type,
        "threads": device.THREADS,
        **found,
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
    rounding = f" TF32: {', '.join(rounded) or 'off'}." if found["device"] == "cuda" else ""
    busy = ", BUSY: threads wait for others, so this says little" if found["load"][0] > BUSY else ""
    set_by_hand = ", ".join(f"{name}={value}" for name, value in found["settings"].items())
    return (
        f"{found['when']}, code {commit}. {gpus}{hardware['processor']}, {hardware['cores']} cores "
        f"({hardware['capability']}), {hardware['memory_bytes'] / 2**30:.0f} GiB; "
        f"{found['threads']} threads; load before {found['load'][0]:g}{busy}. "
        f"torch {versions['torch']}, Python {versions['python']}.{rounding} One allocator for all "
        f"candidates: the platform's default, settings from outside: {set_by_hand or 'none'}."
    )
