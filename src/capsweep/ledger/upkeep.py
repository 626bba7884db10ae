"""What nobody needs any more in a ledger."""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from capsweep.ledger import lease
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.ledger.stored_files import RESULT


@dataclass(frozen=True)
class Garbage:
    """A file or folder of the ledger that can go, why, and its bytes."""

    name: str
    why: str
    size: int


def find_garbage(ledger: Ledger) -> list[Garbage]:
    """All garbage of a ledger; nothing a result, a failure's cause or a resume depends on."""
    garbage = list(_find_spent_checkpoints(ledger))
    if ledger.disk is not None:
        garbage += _find_temporaries(ledger.disk)
        for name in ledger.store.list_names("superseded"):
            size = sum(size for _, size in ledger.store.list_files(f"superseded/{name}"))
            garbage.append(Garbage(f"superseded/{name}", "result that a later run replaced", size))
    return garbage


def _find_spent_checkpoints(ledger: Ledger) -> Iterator[Garbage]:
    if ledger.disk is None:  # a result and the checkpoint of its rerun stand side by side there
        return
    for signature in ledger.list_signatures():
        files = dict(ledger.store.list_files(folder_of(signature)))
        spent = f"{folder_of(signature)}/resume.ckpt"
        if spent in files and f"{folder_of(signature)}/{RESULT}" in files:
            yield Garbage(spent, "checkpoint of a finished cell", files[spent])


def _find_temporaries(root: Path) -> Iterator[Garbage]:
    for path in root.rglob(".*.tmp"):
        with suppress(FileNotFoundError):  # it has its name by now
            status = path.stat()
            if time.time() - status.st_mtime > lease.SETTLED_SECONDS:
                yield Garbage(str(path.relative_to(root)), "half a write", status.st_size)
