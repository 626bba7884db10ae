"""Places: where data and results are on this node. Resolved where the cell runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from capsweep.errors import UserError


@dataclass(frozen=True)
class Places:
    """Absolute folders of this node."""

    storage: Path
    data: Path
    ledger: Path


def resolve(places: Mapping[str, str]) -> Places:
    """Absolute places, without touching the disk."""
    return Places(**{name: Path(path).expanduser().resolve() for name, path in places.items()})


def prepare(places: Places) -> None:
    """Make the folders we write to, and prove that they can be written.

    Raises UserError naming `places.storage` when they cannot.
    """
    try:
        for folder in (places.storage, places.ledger):
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / ".probe"
            probe.touch()
            probe.unlink()
    except OSError as error:
        raise UserError(
            f"places.storage: {places.storage} cannot be written ({error.strerror}); "
            "set STORAGE=... (or places.storage=...) to a writable folder"
        ) from error
    if places.data.is_relative_to(places.storage):
        places.data.mkdir(parents=True, exist_ok=True)
