"""What a ledger no longer needs: leftovers of killed writes, dead claims, spent checkpoints."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from capsweep.ledger import claim
from capsweep.ledger.ledger import Ledger, folder_of

SETTLED_SECONDS = 3600.0  # a temporary file that old is nobody's write any more


@dataclass(frozen=True)
class Garbage:
    """One file or folder that can go, why, and its bytes."""

    name: str
    why: str
    size: int


def find(ledger: Ledger) -> list[Garbage]:
    """All garbage of a ledger; nothing a result, a failure's cause or a resume depends on."""
    found = list(_spent_checkpoints(ledger))
    if ledger.disk is not None:
        found += [*_temporaries(ledger.disk), *_dead_claims(ledger.disk)]
        found += _superseded(ledger)
    return found


def remove(ledger: Ledger, garbage: list[Garbage]) -> int:
    """Remove it; returns the bytes freed."""
    for item in garbage:
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
    for signature, newest in claim.read_all(root).items():
        if newest.owner.is_dead:
            for path in (root / "claims").glob(f"{signature}.*"):
                why = f"claim of {newest.owner}, which is gone"
                yield Garbage(str(path.relative_to(root)), why, path.stat().st_size)


def _superseded(ledger: Ledger) -> Iterator[Garbage]:
    for name in ledger.store.names("superseded"):
        folder = f"superseded/{name}"
        size = sum(size for _, size in ledger.store.files(folder))
        yield Garbage(folder, "result that a later run replaced", size)
