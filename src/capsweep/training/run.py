"""A job: one cell, from its configuration to its result in the ledger, and how it ended.

Drivers import this: torch and Lightning are imported where a cell is trained.
"""

import gc
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from capsweep.config import code_identity, places
from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.errors import CodeChangedError, LeftEarlyError
from capsweep.ledger import causes, cell_directory
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.ledger.lease import ClaimedElsewhereError, ClaimLostError, Lease, hold_lease
from capsweep.ledger.ledger import METRICS, POINTS, Entry, Ledger
from capsweep.tracking import content
from capsweep.tracking.content import Labels
from capsweep.tracking.tracker import Tracker
from capsweep.training import Row, RunHooks, provenance
from capsweep.training.size import calibrate

CODE = ("numerics", "package")  # the hashes that a result has of its code


@dataclass(frozen=True)
class Job:
    """A cell on its way to a worker, the labels its W&B run is found by, and what it may take.

    gpu, cpu: what the scheduler sets aside, a share of one device or whole ones.
    dead: the last sign of the claim on the cell that is known to be a dead process's.
    measures: train a few steps alone to see what the cell costs, and write nothing but that.
    facts: recorded in the result.
    code: what decides the cell's numbers in the driver; None: it runs in the driver itself.
    leave_at: seconds of the epoch, after which the cell leaves at its next epoch end.
    """

    cell: Cell
    labels: Labels = field(default_factory=Labels)
    cpu: float = 1
    gpu: float = 0
    dead_claim: str = ""
    is_calibration: bool = False
    result_extras: dict[str, Any] = field(default_factory=dict)
    code: str | None = None
    leave_at: float | None = None

    def to_json(self) -> str:
        """Return the job as text, for a worker on another node."""
        return json.dumps({**asdict(self), "cell": self.cell.to_json()})

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """Return the job that `to_json` wrote."""
        plain = json.loads(text)
        cell, labels = Cell.from_json(plain.pop("cell")), Labels(**plain.pop("labels"))
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
        return Outcome(run(job, hooks))
    except LeftEarlyError:
        return Outcome(paused="left at the end of an epoch, its checkpoint kept")
    except CodeChangedError as error:
        return Outcome(paused=str(error), ends_sweep=True)
    except (ClaimedElsewhereError, ClaimLostError) as error:
        return Outcome(elsewhere=str(error))
    except Exception as error:  # any failure of a cell, for the reason above
        return Outcome(cause=causes.describe_cause(error))


def run(job: Job, hooks: RunHooks | None = None) -> dict[str, Any]:
    """Run a job's cell, or return its result if it is finished and `rerun` lets that count; of a
    job that measures, what the cell costs.

    Continues from resume.ckpt when an earlier run of the same code was cut short; a damaged one, or
    of other code, is dropped with a line. A failure is written to error.txt and raised. Raises
    ClaimedElsewhereError when another process runs the cell, LeftEarlyError when a hook ended the
    run early, CodeChangedError when the driver had other code, ConfigError, before all else, for a
    `_target_` that may not be called: a cell may have come from anywhere.
    """
    from capsweep.training import build  # it imports torch

    cell, config = job.cell, job.cell.config
    build.check_targets(config)
    if job.code is not None:
        code_identity.check_same(config, job.code)
    is_driver = config["cluster"]["address"] is None
    here = places.resolve(config["places"]) if is_driver else places.on_node(config)
    ledger = Ledger(here.ledger)
    if job.is_calibration:
        measured = calibrate(cell, here)
        ledger.store.write(measured.name, measured.model_dump_json().encode())
        return measured.model_dump()
    with hold_lease(ledger.disk, cell.signature, job.dead_claim) as lease:
        cell_directory.recover_cell(ledger, cell.signature)
        finished = _find_finished(ledger, cell)
        if finished is not None:
            return finished
        opened = cell_directory.open_directory(ledger, cell.signature, here.storage / "scratch")
        with closing(opened) as directory:
            return _train_cell(job, here, directory, lease, hooks or RunHooks())


def _train_cell(
    job: Job, here: Places, directory: CellDirectory, lease: Lease | None, hooks: RunHooks
) -> dict[str, Any]:
    """Train and test a cell that is claimed, and finish it; its result."""
    from capsweep.training import callbacks, fit  # they import torch and Lightning

    def check_lease() -> None:
        if lease is not None:
            lease.raise_if_lost()

    described = provenance.describe_run(job.cell, job.labels)
    directory.start(job.cell, described)
    earlier, rows, points = callbacks.check_resumable(directory, described)
    if earlier:
        directory.update_provenance(described | earlier)
    anew = {key: line for key, line in earlier.items() if key == callbacks.RESTART_KEY}
    with (
        _recording_failures(directory, hooks),
        closing(Tracker(job.cell, here.storage, described)) as tracker,
    ):
        directory.write_rows(METRICS, rows)
        directory.write_rows(POINTS, points)
        for row in content.merge_rows(rows, points):  # again: W&B may have lost them
            tracker.log(row)

        def record_row(name: str, row: Row) -> None:
            """Write a row to the ledger, then to W&B, unless the cell was taken over."""
            check_lease()
            directory.append_row(name, row)
            tracker.log(row)

        result = fit.train_and_test(job, here, directory, hooks, record_row)
        tracker.close(0, content.summarise_result(result), directory.path)
        for name in ("fault", "seconds", "url"):
            result[f"tracking_{name}"] = getattr(tracker, name)
        check_lease()
        result |= {"code": {name: described["code"][name] for name in CODE}}
        result |= {"finished": datetime.now(UTC).isoformat(timespec="seconds")}
        result = directory.finish({**result, **anew, **job.result_extras})
        tracker.mark_synced(Ledger(here.ledger), here.storage, job.cell.signature)
        return result


def _find_finished(ledger: Ledger, cell: Cell) -> dict[str, Any] | None:
    """Return the result that the ledger has, unless `rerun` asks for another."""
    rerun, result = cell.config["rerun"], ledger.read_result(cell.signature)
    if result is None or rerun == "always":
        return None
    entry = ledger.judge(cell.signature, Entry("done", result), cell.config)
    return None if entry.status in ("failed", rerun) else result


@contextmanager
def _recording_failures(directory: CellDirectory, hooks: RunHooks) -> Iterator[None]:
    """Write a failure of the block to error.txt, and raise it."""
    try:
        yield
    except SystemExit as error:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from error
    except (ClaimLostError, LeftEarlyError):
        raise  # the folder is another process's now; or it goes on later, and did not fail
    except Exception as error:  # whatever it is, it is written down and raised
        if hooks.is_stopping:
            # Slurm's SIGTERM goes to every process of a job: those that read batches are gone.
            raise LeftEarlyError("it was told to end; its last checkpoint is kept") from error
        with suppress(OSError):  # of a full disk: what failed first is raised
            directory.write_failure(error)
        raise
    finally:
        # Trainer, module and data refer to each other: without this, a worker that runs one cell
        # after the other holds the data sets of several.
        gc.collect()
