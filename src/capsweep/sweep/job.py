"""A job: one cell on its way to a worker, and how it ended."""

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
from capsweep.sweep import node
from capsweep.tracking.labels import Labels
from capsweep.training.run_hooks import RunHooks
from capsweep.training.size import Measurement


@dataclass(frozen=True)
class Job:
    """A cell, the labels its W&B run is found by, and what it may take.

    gpu, cpu: what the scheduler sets aside, a share of one device or whole ones.
    dead: the sight of the claim on the cell that is known to be a dead process's.
    measures: train a few steps alone to see what the cell costs, and write nothing but that.
    facts: recorded in the result.
    memory: bytes of the node's, for the scheduler; 0: not measured.
    kind: of GPU it must run on, None: any.
    wanted: what the driver asks of a node, see `node.required`.
    code: what decides the cell's numbers in the driver; None: it runs in the driver itself.
    """

    cell: Cell
    labels: Labels
    cpu: float = 1
    gpu: float = 0
    dead: str = ""
    measures: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    memory: int = 0
    kind: str | None = None
    wanted: dict[str, Any] | None = None
    code: str | None = None

    def to_json(self) -> str:
        """Plain text, for a worker on another node."""
        return json.dumps({**asdict(self), "cell": self.cell.to_json()})

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """The job that `to_json` wrote."""
        plain = json.loads(text)
        cell, labels = Cell.from_json(plain.pop("cell")), Labels.from_plain(plain.pop("labels"))
        return cls(cell, labels, **plain)


@dataclass(frozen=True)
class Outcome:
    """How a job ended: its result, the cause of its failure in one line, or who else has it.

    stopped: a search ended it early; it has neither.
    left: it ended and did not fail, as when it was asked to; its checkpoint is kept.
    stop_reason: why no other job may start, where that is what ended it.
    """

    result: dict[str, Any] | None = None
    cause: str | None = None
    elsewhere: str | None = None
    stopped: bool = False
    left: bool = False
    stop_reason: str | None = None


def _measure(job: Job, here: Places) -> Measurement:
    from capsweep.training.calibrate import calibrate

    measured = calibrate(job.cell, here)
    content = json.dumps(asdict(measured)).encode()
    Ledger(here.ledger).store.write(measured.name, content)
    return measured


def _prepared(job: Job) -> Places:
    """The places here. Raises NodeError before anything is trained where the node is at fault."""
    config = job.cell.config
    if job.wanted is not None:
        node.check(job.wanted, config)
    if job.code is not None:
        code_identity.check_same(config, job.code)
    is_driver = config["cluster"]["address"] is None
    return places.resolve(config["places"]) if is_driver else places.on_node(config)


def run_job(job: Job, hooks: RunHooks) -> Outcome:
    """Run a job to its end. A failure of the cell is an outcome, not an exception: it is in the
    ledger, and the other cells go on.
    """
    try:
        here = _prepared(job)
        if job.measures:
            return Outcome(asdict(_measure(job, here)))
        from capsweep.training.run import run  # a driver does without

        result = run(
            job.cell,
            here,
            hooks,
            labels=job.labels,
            dead=job.dead,
            facts=job.facts,
            gpus=job.gpu or None,
        )
        return Outcome(result)
    except LeftEarlyError:
        return Outcome(left=True)
    except CodeChangedError as error:
        return Outcome(left=True, stop_reason=str(error))
    except (ClaimedElsewhereError, ClaimLostError) as error:
        return Outcome(elsewhere=str(error))
    except Exception as error:  # any failure of a cell, for the reason above
        return Outcome(cause=causes.describe_cause(error))
