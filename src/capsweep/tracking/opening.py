"""What a W&B run is opened with: enough for any process to open the same run."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from capsweep.config.cell import Cell, flat
from capsweep.tracking import content
from capsweep.tracking.content import Content
from capsweep.tracking.labels import Labels


@dataclass(frozen=True)
class Opening:
    """storage: W&B's files are below storage/wandb. step: of the next row that has no epoch.
    epoch: the last that the run has already; None for a run that begins.

    of_process: whose use of processor and memory W&B draws. seconds: W&B may cost at most.
    """

    signature: str
    project: str
    entity: str | None
    offline: bool
    labels: Labels
    config: Mapping[str, Any]
    storage: str
    of_process: int
    step: int = 0
    epoch: int | None = None
    seconds: float = 5.0

    def plain(self) -> dict[str, Any]:
        """The opening as JSON has it."""
        return asdict(self) | {"labels": self.labels.plain()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Opening":
        """The opening that `plain` gave."""
        return cls(**{**plain, "labels": Labels.from_plain(plain["labels"])})

    def as_offline(self) -> "Opening":
        """The same run, offline."""
        return replace(self, offline=True)


def of_cell(cell: Cell, storage: Path, labels: Labels) -> Opening:
    """The run of a cell that is about to be trained with logger=wandb."""
    known = content.section(cell, labels)
    return Opening(
        signature=cell.signature,
        project=known["project"],
        entity=known["entity"],
        offline=known["mode"] != "online",
        labels=Labels.from_plain(known),
        config=flat(cell.science) | known["columns"],
        storage=str(storage),
        of_process=os.getpid(),
        seconds=cell.config["logger"]["max_seconds"],
    )


def of_content(found: Content, storage: Path, offline: bool) -> Opening:
    """The run of a cell that is in the ledger. Raises ValueError where it was not asked for."""
    if found.project is None:
        raise ValueError(f"{found.signature} was run without W&B")
    return Opening(
        signature=found.signature,
        project=found.project,
        entity=found.entity,
        offline=offline,
        labels=found.labels,
        config=found.config,
        storage=str(storage),
        of_process=os.getpid(),
        step=len(found.rows) + 1,  # after its tables
        epoch=found.rows[-1]["epoch"] if found.rows else None,
    )
