"""The ledger, read: what is known of a cell."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from capsweep.config.cell import folder
from capsweep.files import write_text

Status = Literal["done", "failed", "missing"]


@dataclass(frozen=True)
class Entry:
    """One cell's state: its result when done, the cause in one line when failed."""

    status: Status
    result: dict[str, Any] | None = None
    cause: str | None = None


class Ledger:
    """Finished and failed cells, content-addressed by signature."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def entry(self, signature: str) -> Entry:
        """What is known of a cell. A result that cannot be read counts as failed, and says so."""
        path = folder(self.root, signature)
        result, error = path / "result.json", path / "error.txt"
        if result.exists():
            try:
                return Entry("done", json.loads(result.read_text()))
            except ValueError:
                return Entry("failed", cause=f"{result} is damaged; the cell is run again")
        if error.exists():
            return Entry("failed", cause=error.read_text().partition("\n")[0])
        return Entry("missing")

    def note_failure(self, signature: str, cause: str) -> None:
        """Write down a failure that the cell itself could not: its process is gone."""
        error = folder(self.root, signature) / "error.txt"
        if not error.exists():
            write_text(error, f"{cause}\n")
