"""Cells that are nothing in themselves, and a listener that notes when they started and ended."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.sweep.job import Job, Outcome
from capsweep.tracking.labels import Labels


class Unknown:
    """Costs of which nothing is known but what the jobs say."""

    def __init__(self, lengths: dict[str, float]) -> None:
        self.lengths = lengths

    def seconds(self, cell: Cell) -> float | None:
        """As declared."""
        return self.lengths.get(cell.signature)

    def add(self, result: dict[str, Any]) -> None:
        """Nothing is learned."""


@dataclass(frozen=True)
class Moment:
    """A cell started or ended, and what the driver's memory was."""

    at: float
    signature: str
    started: bool
    resident: int


class Watch:
    """A listener that notes when things happened, and how long cells were in their epochs."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self.trained = 0.0  # seconds, of all cells that ended

    def started(self, signature: str) -> None:
        """See Listener."""
        self._note(signature, started=True)

    def epoch(self, signature: str, row: dict[str, Any]) -> None:
        """See Listener."""

    def ended(self, signature: str, outcome: Outcome) -> None:
        """See Listener."""
        if outcome.result is None:
            raise RuntimeError(f"{signature}: {outcome.cause}")
        self.trained += outcome.result.get("seconds", {}).get("fit", 0.0)
        self._note(signature, started=False)

    def said(self, signature: str, what: str) -> None:
        """See Listener."""

    def _note(self, signature: str, started: bool) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.moments.append(Moment(time.monotonic(), signature, started, pages * 4096))

    def starts(self) -> dict[str, float]:
        """When each cell started."""
        return {moment.signature: moment.at for moment in self.moments if moment.started}

    def ends(self) -> dict[str, float]:
        """When each cell ended."""
        return {moment.signature: moment.at for moment in self.moments if not moment.started}


def cells_of(count: int, *overrides: str) -> list[Cell]:
    """So many, told apart by their seeds."""
    return [compose.cell([*overrides, "resources.gpu=0", f"seed={seed}"]) for seed in range(count)]


def one_step_jobs(count: int, folder: str) -> list[Job]:
    """Cells that fit one step with Lightning on eight digits, with their results in `folder`."""
    small = ["model=cnn_small", "epochs=1", "limit_batches=1", "batch_size=8", "logger=csv"]
    small += [f"places.storage={folder}", "trainer.accelerator=cpu"]
    return [Job(cell, Labels(), cpu=1) for cell in cells_of(count, *small)]
