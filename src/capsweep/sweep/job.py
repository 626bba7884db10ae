"""A job: one cell on its way to a worker, and how it ended."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.training.cell_directory import cause_of
from capsweep.training.run import run
from capsweep.training.tracking import Labels


@dataclass(frozen=True)
class Job:
    """A cell and the labels its W&B run is found by."""

    cell: Cell
    labels: Labels

    def to_json(self) -> str:
        """Plain text, for a worker on another node."""
        return json.dumps({"cell": self.cell.to_json(), "labels": asdict(self.labels)})

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """The job that `to_json` wrote."""
        plain = json.loads(text)
        return cls(Cell.from_json(plain["cell"]), Labels(**plain["labels"]))


@dataclass(frozen=True)
class Outcome:
    """How a job ended: its result, or the cause of its failure in one line."""

    result: dict[str, Any] | None
    cause: str | None


def run_job(job: Job, on_epoch: Callable[[dict[str, Any]], object]) -> Outcome:
    """Run a job to its end. A failure of the cell is an outcome, not an exception: it is in the
    ledger, and the other cells go on.
    """
    try:
        here = places.resolve(job.cell.config["places"])
        return Outcome(run(job.cell, here, job.labels, on_epoch), None)
    except Exception as error:  # any failure of a cell, for the reason above
        return Outcome(None, cause_of(error))
