"""Marks of what W&B has: STORAGE/wandb/synced/SIGNATURE.json, one for each cell that is there."""

import json
from datetime import UTC, datetime
from pathlib import Path

from capsweep.files import write_json
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
    try:
        mark = json.loads(file_of(storage, content.signature).read_text())
    except (OSError, ValueError):
        return False
    return (mark.get("digest"), mark.get("server")) == (content.digest, server)
