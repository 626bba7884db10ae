"""Folders that belong to one process, and those that a killed process left behind.

A process signs its folder. A folder without a signature is of an earlier version: it counts as
abandoned when nothing in it was touched for a week.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from capsweep.errors import DamageError
from capsweep.ledger import checks, lease, stored_files
from capsweep.ledger.lease import Owner

SIGNED = ".owner.json"
LONG_SECONDS = 7 * 24 * 3600.0


def sign(folder: Path) -> None:
    """Write down that a folder belongs to this process."""
    (folder / SIGNED).write_text(json.dumps(asdict(lease.current_owner())))


def find_abandoned(parent: Path, pattern: str) -> Iterator[tuple[Path, str]]:
    """Folders whose process is gone and which no running process names; each with the reason."""
    folders = [folder for folder in sorted(parent.glob(pattern)) if folder.is_dir()]
    processes = _read_processes() if folders else b""
    for folder in folders:
        if folder.is_symlink() or os.fsencode(folder.absolute()) in processes:
            continue
        owner = _owner(folder)
        if owner is not None and owner.is_dead:
            yield folder, f"of {owner}, which is gone"
        elif owner is None and time.time() - _touched(folder) > LONG_SECONDS:
            yield folder, "of an unknown process, untouched for a week"


def _owner(folder: Path) -> Owner | None:
    path = folder / SIGNED
    try:
        plain = stored_files.parse(path.read_bytes(), str(path), "", checks.OWNER)
    except (OSError, DamageError):
        return None
    return Owner(*(plain[name] for name in ("host", "machine", "pid", "started")))


def _touched(folder: Path) -> float:
    """When anything in a folder was last touched; now, where its content changes meanwhile."""
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        return time.time()


def _read_processes() -> bytes:
    """The arguments and environments of all processes that this user may read."""
    texts = []
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                texts.append((process / name).read_bytes())
            except OSError:  # it is gone, or another user's
                continue
    return b"\0".join(texts)
