"""Marks of what W&B has: STORAGE/wandb/synced/SIGNATURE.json, one for each cell that is there."""

from datetime import UTC, datetime
from pathlib import Path

from capsweep.errors import DamageError
from capsweep.ledger import checks, stored_files
from capsweep.storage.files import write_json
from capsweep.tracking.content import Content


def file_of(storage: Path, signature: str) -> Path:
    """Where the mark of a cell stands."""
    return storage / "wandb" / "synced" / f"{signature}.json"


def write(storage: Path, content: Content, server: str) -> None:
    """W&B at `server` has exactly this content."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    mark = {"digest": content.digest, "server": server, "synced": now}
    write_json(file_of(storage, content.signature), mark)


def is_synced(storage: Path, content: Content, server: str) -> bool:
    """Whether W&B at `server` has exactly this content. A damaged mark says no: sent twice is one
    run all the same."""
    file = file_of(storage, content.signature)
    try:
        mark = stored_files.parse(file.read_bytes(), str(file), "it is sent again", checks.MARK)
    except (OSError, DamageError):
        return False
    return (mark["digest"], mark["server"]) == (content.digest, server)
