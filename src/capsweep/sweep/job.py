"""A job: one cell on its way to a worker, which runs it, and how it ended."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from capsweep.config import code_identity, places
from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.errors import CodeChangedError, LeftEarlyError
from capsweep.ledger import causes
from capsweep.ledger.lease import ClaimedElsewhereError, ClaimLostError
from capsweep.ledger.ledger import Ledger
from capsweep.tracking.labels import Labels
from capsweep.training import RunHooks
from capsweep.training.size import calibrate

AUTO = "auto"


@dataclass(frozen=True)
class Job:
    """A cell, the labels its W&B run is found by, and what it may take.

    gpu, cpu: what the scheduler sets aside, a share of one device or whole ones.
    dead: the last sign of the claim on the cell that is known to be a dead process's.
    measures: train a few steps alone to see what the cell costs, and write nothing but that.
    facts: recorded in the result.
    code: what decides the cell's numbers in the driver; None: it runs in the driver itself.
    leave_at: seconds of the epoch, after which the cell leaves at its next epoch end.
    """

    cell: Cell
    labels: Labels
    cpu: float = 1
    gpu: float = 0
    dead: str = ""
    measures: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    code: str | None = None
    leave_at: float | None = None

    def to_json(self) -> str:
        """Return the job as text, for a worker on another node."""
        return json.dumps({**asdict(self), "cell": self.cell.to_json()})

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """Return the job that `to_json` wrote."""
        plain = json.loads(text)
        cell, labels = Cell.from_json(plain.pop("cell")), Labels.from_plain(plain.pop("labels"))
        return cls(cell, labels, **plain)


@dataclass(frozen=True)
class Outcome:
    """How a job ended: its result, the cause of its failure in one line, or who else has it.

    stopped: a search ended it early; it has neither.
    paused: why it ended and did not fail, to go on later from its checkpoint.
    ends_sweep: no other job may start, for the reason in `paused`.
    """

    result: dict[str, Any] | None = None
    cause: str | None = None
    elsewhere: str | None = None
    stopped: bool = False
    paused: str = ""
    ends_sweep: bool = False


def run_job(job: Job, hooks: RunHooks) -> Outcome:
    """Run a job to its end. A failure of the cell is an outcome, not an exception: it is in the
    ledger, and the other cells go on.
    """
    try:
        return Outcome(_run_cell(job, hooks))
    except LeftEarlyError:
        return Outcome(paused="left at the end of an epoch, its checkpoint kept")
    except CodeChangedError as error:
        return Outcome(paused=str(error), ends_sweep=True)
    except (ClaimedElsewhereError, ClaimLostError) as error:
        return Outcome(elsewhere=str(error))
    except Exception as error:  # any failure of a cell, for the reason above
        return Outcome(cause=causes.describe_cause(error))


def _run_cell(job: Job, hooks: RunHooks) -> dict[str, Any]:
    config = job.cell.config
    if job.code is not None:
        code_identity.check_same(config, job.code)
    is_driver = config["cluster"]["address"] is None
    node_places = places.resolve(config["places"]) if is_driver else places.on_node(config)
    if job.measures:
        return _measure_cell(job, node_places)
    from capsweep.training.run import run  # a driver does without

    return run(
        job.cell,
        node_places,
        hooks,
        labels=job.labels,
        dead=job.dead,
        facts=job.facts,
        gpus=job.gpu or None,
    )


def _measure_cell(job: Job, node_places: Places) -> dict[str, Any]:
    measurement = asdict(measured := calibrate(job.cell, node_places))
    Ledger(node_places.ledger).store.write(measured.name, json.dumps(measurement).encode())
    return measurement
