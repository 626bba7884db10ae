"""Run a job: train one cell and store the result in the ledger, or return why there is no result.

The drivers of sweeps import this module, so it imports torch and Lightning only inside functions.
"""

import gc
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from capsweep.config import code_identity, package_files, places
from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.errors import CodeChangedError, LeftEarlyError
from capsweep.ledger import causes, cell_directory
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.ledger.lease import ClaimedElsewhereError, ClaimLostError, Lease, take_lease
from capsweep.ledger.ledger import METRICS, POINTS, Entry, Ledger
from capsweep.tracking import content
from capsweep.tracking.content import Labels
from capsweep.tracking.tracker import Tracker
from capsweep.training import Row, RunHooks, provenance
from capsweep.training.size import calibrate

CODE = ("numerics", "package")  # the hashes of code that a result contains


@dataclass(frozen=True)
class Job:
    """A cell that a worker will run, with labels, resources and limits.

    Attributes:
        cell: The cell.
        labels: The labels of the cell's W&B run.
        cpu: The number of processor cores that the scheduler reserves for the job.
        gpu: The number of GPUs that the scheduler reserves for the job. A number below 1 is a share
            of one GPU.
        dead_claim: `Claim.last_sign` of an earlier claim on the cell, if the process that owns the
            claim is known to have ended. This claim may be taken over. Empty: there is no such
            claim.
        is_calibration: Whether to train only a few steps, and to store only their time and memory.
        result_extras: Further keys and values for the result.
        code: The hash of the code that computes the cell's results, as the driver computed it;
            None: the job runs in the driver itself.
        leave_at: A Unix time in seconds. The run ends after the epoch that is running at this time,
            and a checkpoint is kept; None: there is no such limit.
        shorter: The signature of a finished cell with fewer epochs, from whose last checkpoint the
            cell begins if the numbers then equal those of an uninterrupted run. Empty: there is no
            such cell.
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
    shorter: str = ""

    def to_json(self) -> str:
        """Return the job as JSON, for a worker on another node."""
        return json.dumps({**asdict(self), "cell": self.cell.to_json()})

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """Read a job from the JSON that `to_json` wrote."""
        plain = json.loads(text)
        cell, labels = Cell.from_json(plain.pop("cell")), Labels(**plain.pop("labels"))
        return cls(cell, labels, **plain)


@dataclass(frozen=True)
class Outcome:
    """The way in which a job ended.

    Attributes:
        result: The result of a finished cell, or the measurement of a calibration.
        cause: The cause of a failure, in one line.
        elsewhere: If another process runs the cell, a message that says so; else None.
        stopped: Whether a search ended the cell early.
        paused: Why the job ended without a result, although nothing failed. The cell can be run
            again later. Empty: the job did not end in this way.
        ends_sweep: Whether no other job of the sweep may start, for the reason in `paused`.
    """

    result: dict[str, Any] | None = None
    cause: str | None = None
    elsewhere: str | None = None
    stopped: bool = False
    paused: str = ""
    ends_sweep: bool = False


def run_job(job: Job, hooks: RunHooks) -> Outcome:
    """Run a job and return how it ended.

    A failure of the cell is returned and not raised, so that the other cells continue. A failure in
    training or testing is also stored in the ledger. Ctrl-C raises KeyboardInterrupt.
    """
    try:
        return Outcome(run(job, hooks))
    except LeftEarlyError:
        return Outcome(paused="ended early after an epoch; its checkpoint is kept")
    except CodeChangedError as error:
        return Outcome(paused=str(error), ends_sweep=True)
    except (ClaimedElsewhereError, ClaimLostError) as error:
        return Outcome(elsewhere=str(error))
    except Exception as error:  # any failure of a cell is an outcome
        return Outcome(cause=causes.describe_cause(error))


def run(job: Job, hooks: RunHooks | None = None) -> dict[str, Any]:
    """Run the cell of a job and return the result, or return a stored result from the ledger.

    The key `rerun` of the configuration decides whether a finished cell is run again:

    - "never": a finished cell is not run again.
    - "stale": a finished cell is run again if other code computed the result.
    - "always": a finished cell is run again.

    If an earlier run of the same code was interrupted, training continues from resume.ckpt. If this
    checkpoint is damaged, or comes from other code, the checkpoint is removed, and a line on stderr
    says so. A failure in training or testing is written to error.txt and raised.

    Args:
        job: The job.
        hooks: Hooks with which the caller follows the epochs and ends the run early. None:
            there are no hooks.

    Returns:
        The result of the cell. For a calibration, the measurement, which is also stored.

    Raises:
        ConfigError: If a `_target_` may not be called. This is checked first, because the cell may
            come from an untrusted source.
        CodeChangedError: If the code on this node differs from the code of the driver.
        ClaimedElsewhereError: If another process runs the cell.
        ClaimLostError: If another process took the cell over during the run.
        LeftEarlyError: If a hook or SIGTERM ended the run early.
    """
    from capsweep.training import build  # this imports torch

    cell, config = job.cell, job.cell.config
    build.check_targets(config)
    if job.code is not None:
        code_identity.check_same_code(config, job.code)
    is_driver = config["cluster"]["address"] is None
    here = places.resolve(config["places"]) if is_driver else places.resolve_on_node(config)
    ledger = Ledger(here.ledger)
    if job.is_calibration:
        measured = calibrate(cell, here)
        ledger.store.write(measured.name, measured.model_dump_json().encode())
        return measured.model_dump()
    claim = nullcontext()  # an object store has no claims
    if ledger.disk is not None:
        claim = take_lease(ledger.disk, cell.signature, job.dead_claim)
    with claim as lease:
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
    """Train and test a cell that this process has claimed, and store and return the result."""
    from capsweep.training import callbacks, fit, tensorboard  # these import torch and Lightning

    def check_lease() -> None:
        if lease is not None:
            lease.raise_if_lost()

    described = provenance.describe_run(job.cell, job.labels)
    directory.start(job.cell, described, package_files.read_checkout()["changes"])
    ledger = Ledger(here.ledger)
    earlier, rows, points = callbacks.check_resumable(directory, described, ledger, job.shorter)
    if earlier:
        directory.update_provenance(described | earlier)
    begun = {key: value for key, value in earlier.items() if key != "earlier"}
    uses_board = job.cell.config["logger"]["name"] == "tensorboard"
    open_tracker = tensorboard.TensorBoardTracker if uses_board else Tracker
    with (
        _recording_failures(directory, hooks),
        closing(open_tracker(job.cell, here.storage, described)) as tracker,
    ):
        directory.write_rows(METRICS, rows)
        directory.write_rows(POINTS, points)
        for row in content.merge_rows(rows, points):  # log earlier rows again: W&B may lack them
            tracker.log(row)

        def record_row(name: str, row: Row) -> None:
            """Write a row to the ledger and to W&B.

            Raises:
                ClaimLostError: If another process took the cell over. The row is not written.
            """
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
        largest = 1e6 * job.cell.config["trainer"].get("kept_checkpoint", 0)
        result = directory.finish({**result, **begun, **job.result_extras}, largest)
        tracker.mark_synced(ledger, here.storage, job.cell.signature)
        return result


def _find_finished(ledger: Ledger, cell: Cell) -> dict[str, Any] | None:
    """Return the stored result of a cell, or None if the cell must be run.

    A cell must be run if it has no valid result, or if the key `rerun` requires a new result.
    """
    rerun, result = cell.config["rerun"], ledger.read_result(cell.signature)
    if result is None or rerun == "always":
        return None
    entry = ledger.judge(cell.signature, Entry("done", result), cell.config)
    return None if entry.status in ("failed", rerun) else result


@contextmanager
def _recording_failures(directory: CellDirectory, hooks: RunHooks) -> Iterator[None]:
    """Write a failure of the `with` block to error.txt, and raise the exception again.

    ClaimLostError and LeftEarlyError do not count as failures and are only raised again.

    Raises:
        KeyboardInterrupt: Instead of SystemExit, which Lightning raises after Ctrl-C.
        LeftEarlyError: If the block fails after SIGTERM. Then error.txt is not written.
    """
    try:
        yield
    except SystemExit as error:  # Lightning raises SystemExit after Ctrl-C
        raise KeyboardInterrupt from error
    except (ClaimLostError, LeftEarlyError):
        raise  # not a failure: another process owns the folder, or the cell continues later
    except Exception as error:  # any exception is recorded and raised
        if hooks.is_stopping:
            # Slurm sends SIGTERM to every process of a job, so that reading batches can fail.
            raise LeftEarlyError("ended by SIGTERM; its last checkpoint is kept") from error
        with suppress(OSError):  # if the disk is full, the first error is raised
            directory.write_failure(error)
        raise
    finally:
        # Trainer, module and data refer to each other. Without a garbage collection, a worker that
        # runs several cells would keep several data sets in memory.
        gc.collect()
