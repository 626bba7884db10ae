"""Places: where data and results are on this node. Resolved where the cell runs."""

import os.path
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from capsweep.errors import UserError


@dataclass(frozen=True)
class Places:
    """Folders of this node, absolute. The ledger may be the URL of an object store instead."""

    storage: Path
    data: Path
    ledger: str


def is_url(place: str) -> bool:
    """Whether a place is an object store's (s3://bucket/folder) and not a folder's path."""
    return "://" in place


def absolute(place: str) -> str:
    """The place, independent of the current folder; a URL stays as it is."""
    return place if is_url(place) else os.path.abspath(os.path.expanduser(place))


def resolve(places: Mapping[str, str]) -> Places:
    """Absolute places, without touching the disk."""
    storage, data = Path(absolute(places["storage"])), Path(absolute(places["data"]))
    return Places(storage, data, absolute(places["ledger"]))


def prepare(places: Places) -> None:
    """Make the folders we write to, and prove that they can be written.

    Raises UserError naming `places.storage` when they cannot.
    """
    ledgers = [] if is_url(places.ledger) else [Path(places.ledger)]
    try:
        for folder in (places.storage, *ledgers):
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / ".probe"
            probe.touch()
            probe.unlink(missing_ok=True)  # another sweep may prove the same
    except OSError as error:
        raise UserError(
            f"places.storage: {places.storage} cannot be written ({error.strerror}); "
            "set STORAGE=... (or places.storage=...) to a writable folder"
        ) from error
    if places.data.is_relative_to(places.storage):
        places.data.mkdir(parents=True, exist_ok=True)
