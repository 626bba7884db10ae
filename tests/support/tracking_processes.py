"""The processes that speak to W&B, and others that a trainer starts."""

from pathlib import Path

import processes


def of(trainer: int, module: str = "capsweep.tracking.process") -> list[int]:
    """The processes of a module that a process which trains has started."""
    started = processes.children(trainer)
    return sorted(pid for pid in started if module in processes.command(pid))


def temporary_folders(place: Path) -> list[Path]:
    """Folders of processes that speak to W&B, which should go with them."""
    return list(place.glob("capsweep-wandb-*"))
