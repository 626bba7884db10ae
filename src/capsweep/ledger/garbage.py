"""What nobody needs any more: leftovers of killed writes and processes, dead claims, spent
checkpoints.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from capsweep.ledger import lease, owned
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.ledger.store import Disk
from capsweep.storage.files import remove_path as remove_file

SETTLED_SECONDS = 3600.0  # a temporary file that old is nobody's write any more


@dataclass(frozen=True)
class Garbage:
    """A file or folder that can go, why, and its bytes. name: in the ledger; a path: beside it."""

    name: str | Path
    why: str
    size: int


def find(ledger: Ledger) -> list[Garbage]:
    """All garbage of a ledger; nothing a result, a failure's cause or a resume depends on."""
    found = list(_spent_checkpoints(ledger))
    if ledger.disk is not None:
        found += [*_temporaries(ledger.disk), *_dead_claims(ledger.disk)]
        found += _superseded(ledger)
    return found


def find_left(storage: Path, temporary: Path) -> list[Garbage]:
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
        Garbage(folder, why, sum(size for _, size in Disk(folder).files("")))
        for parent, pattern in places
        for folder, why in owned.find_abandoned(parent, pattern)
    ]


def remove(ledger: Ledger, garbage: list[Garbage]) -> int:
    """Remove it; returns the bytes freed."""
    for item in garbage:
        if isinstance(item.name, Path):
            remove_file(item.name)
        else:
            ledger.store.remove(item.name)
    return sum(item.size for item in garbage)


def _spent_checkpoints(ledger: Ledger) -> Iterator[Garbage]:
    for signature in ledger.signatures():
        files = dict(ledger.store.files(folder_of(signature)))
        spent = f"{folder_of(signature)}/resume.ckpt"
        if spent in files and f"{folder_of(signature)}/result.json" in files:
            yield Garbage(spent, "checkpoint of a finished cell", files[spent])


def _temporaries(root: Path) -> Iterator[Garbage]:
    # Against the file system's own clock, which stamped the files.
    probe = root / ".probe"
    probe.touch()
    now = probe.stat().st_mtime
    probe.unlink(missing_ok=True)
    for path in root.rglob(".*.tmp"):
        stat = path.stat()
        if now - stat.st_mtime > SETTLED_SECONDS:
            yield Garbage(str(path.relative_to(root)), "half a write", stat.st_size)


def _dead_claims(root: Path) -> Iterator[Garbage]:
    for signature, newest in lease.read_claims(root).items():
        if newest.owner.is_dead:
            for path in (root / "claims").glob(f"{signature}.*"):
                why = f"claim of {newest.owner}, which is gone"
                yield Garbage(str(path.relative_to(root)), why, path.stat().st_size)


def _superseded(ledger: Ledger) -> Iterator[Garbage]:
    for name in ledger.store.names("superseded"):
        folder = f"superseded/{name}"
        size = sum(size for _, size in ledger.store.files(folder))
        yield Garbage(folder, "result that a later run replaced", size)
