"""What a W&B run is called, and how it is found again."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Labels:
    """How a run is found again: W&B's group, job type, name, notes and tags."""

    group: str = "train"
    job_type: str = "train"
    name: str = ""
    notes: str = ""
    tags: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """The labels as JSON has them."""
        return asdict(self) | {"tags": list(self.tags)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Labels":
        """The labels that `plain` gave, among other keys or with some missing."""
        texts = ("group", "job_type", "name", "notes")
        known = {key: plain[key] for key in texts if key in plain}
        return cls(**known, tags=tuple(plain.get("tags", ())))
