"""The processes that speak to W&B, and others that a trainer starts: found, and waited for."""

import os
import select
from pathlib import Path


def of(trainer: int, module: str = "capsweep.tracking.process") -> list[int]:
    """The processes of a module that a process which trains has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command, stat = path.read_bytes(), (path.parent / "stat").read_text()
        except OSError:
            continue  # it ended meanwhile
        parent = int(stat.rpartition(")")[2].split()[1])
        if module.encode() in command and parent == trainer:
            found.append(int(path.parent.name))
    return sorted(found)


def has_ended(pid: int, seconds: float) -> bool:
    """Wait for a process that is not our child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def temporary_folders(place: Path) -> list[Path]:
    """Folders of processes that speak to W&B, which should go with them."""
    return list(place.glob("capsweep-wandb-*"))
