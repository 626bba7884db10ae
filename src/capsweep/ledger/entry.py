"""What the ledger knows of one cell."""

from dataclasses import dataclass
from typing import Any, Literal

# done: finished. stale: finished, by other code. stopped: ended early by a search, never a result.
# running: some living process has it.
Status = Literal["done", "stale", "failed", "stopped", "running", "missing"]


@dataclass(frozen=True)
class Entry:
    """One cell's state: its result when done or stale, the cause in one line when failed.

    `owner` says which process runs it; `package` which code made a failure.
    """

    status: Status
    result: dict[str, Any] | None = None
    cause: str | None = None
    owner: str | None = None
    package: str | None = None
