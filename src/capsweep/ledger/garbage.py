"""What nobody needs any more: leftovers of killed writes and processes, dead claims, spent
checkpoints.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from capsweep.errors import DamageError
from capsweep.ledger import lease, stored_files
from capsweep.ledger.lease import Owner
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.storage.files import remove_path as remove_file
from capsweep.storage.stores import Disk

SIGNED = ".owner.json"
LONG_SECONDS = 7 * 24 * 3600.0
SETTLED_SECONDS = 3600.0  # a temporary file that old is nobody's write any more


def sign_folder(folder: Path) -> None:
    """Write down that a folder belongs to this process."""
    (folder / SIGNED).write_text(json.dumps(asdict(lease.current_owner())))


def find_abandoned(parent: Path, pattern: str) -> Iterator[tuple[Path, str]]:
    """Folders whose process is gone and which no running process names; each with the reason."""
    folders = [folder for folder in sorted(parent.glob(pattern)) if folder.is_dir()]
    processes = _read_processes() if folders else b""
    for folder in folders:
        if folder.is_symlink() or os.fsencode(folder.absolute()) in processes:
            continue
        owner = _read_owner(folder)
        if owner is not None and owner.is_dead:
            yield folder, f"of {owner}, which is gone"
        elif owner is None and time.time() - _last_touched(folder) > LONG_SECONDS:
            yield folder, "of an unknown process, untouched for a week"


def _read_owner(folder: Path) -> Owner | None:
    path = folder / SIGNED
    try:
        plain = stored_files.parse_json(path.read_bytes(), str(path), "", stored_files.OWNER)
    except (OSError, DamageError):
        return None
    return Owner(*(plain[name] for name in ("host", "machine", "pid", "started")))


def _last_touched(folder: Path) -> float:
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


@dataclass(frozen=True)
class Garbage:
    """A file or folder that can go, why, and its bytes. name: in the ledger; a path: beside it."""

    name: str | Path
    why: str
    size: int


def find_garbage(ledger: Ledger) -> list[Garbage]:
    """All garbage of a ledger; nothing a result, a failure's cause or a resume depends on."""
    found = list(_find_spent_checkpoints(ledger))
    if ledger.disk is not None:
        found += [*_find_temporaries(ledger.disk), *_find_dead_claims(ledger.disk)]
        found += _find_superseded(ledger)
    return found


def find_leftovers(storage: Path, temporary: Path) -> list[Garbage]:
    """What processes of this machine left beside the ledger when they were killed: half a cell of
    an object store, what Ray Tune writes, what W&B does, where several devices met.
    """
    places = (
        (storage / "scratch", "*-*"),
        (storage / "ray", "sweep-*"),
        (temporary, "capsweep-wandb-*"),
        (temporary, "capsweep-ranks-*"),
    )
    return [
        Garbage(folder, why, sum(size for _, size in Disk(folder).list_files("")))
        for parent, pattern in places
        for folder, why in find_abandoned(parent, pattern)
    ]


def remove_garbage(ledger: Ledger, garbage: list[Garbage]) -> int:
    """Remove it; returns the bytes freed."""
    for item in garbage:
        if isinstance(item.name, Path):
            remove_file(item.name)
        else:
            ledger.store.remove(item.name)
    return sum(item.size for item in garbage)


def _find_spent_checkpoints(ledger: Ledger) -> Iterator[Garbage]:
    for signature in ledger.list_signatures():
        files = dict(ledger.store.list_files(folder_of(signature)))
        spent = f"{folder_of(signature)}/resume.ckpt"
        if spent in files and f"{folder_of(signature)}/result.json" in files:
            yield Garbage(spent, "checkpoint of a finished cell", files[spent])


def _find_temporaries(root: Path) -> Iterator[Garbage]:
    # Against the file system's own clock, which stamped the files.
    probe = root / ".probe"
    probe.touch()
    now = probe.stat().st_mtime
    probe.unlink(missing_ok=True)
    for path in root.rglob(".*.tmp"):
        stat = path.stat()
        if now - stat.st_mtime > SETTLED_SECONDS:
            yield Garbage(str(path.relative_to(root)), "half a write", stat.st_size)


def _find_dead_claims(root: Path) -> Iterator[Garbage]:
    for signature, newest in lease.read_claims(root).items():
        if newest.owner.is_dead:
            for path in (root / "claims").glob(f"{signature}.*"):
                why = f"claim of {newest.owner}, which is gone"
                yield Garbage(str(path.relative_to(root)), why, path.stat().st_size)


def _find_superseded(ledger: Ledger) -> Iterator[Garbage]:
    for name in ledger.store.list_names("superseded"):
        folder = f"superseded/{name}"
        size = sum(size for _, size in ledger.store.list_files(folder))
        yield Garbage(folder, "result that a later run replaced", size)
