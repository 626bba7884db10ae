"""run(cell, places) -> result: one training run, from configuration to the ledger."""

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from capsweep.config import code_identity
from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.errors import CodeChangedError, LeftEarlyError, WorkerLostError
from capsweep.ledger import cell_directory, lease
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.ledger.lease import Lease
from capsweep.ledger.ledger import Ledger
from capsweep.tracking import content
from capsweep.tracking import tracker as trackers
from capsweep.tracking.labels import Labels
from capsweep.tracking.tracker import Tracker
from capsweep.training import build, checkpoint, devices, fit, provenance
from capsweep.training.callbacks import Hearing, Row
from capsweep.training.notice import Notice


@dataclass(frozen=True)
class Wishes:
    """What the caller adds to a cell: labels of its W&B run, who is told every epoch's row, the
    sight of a dead claim to take over, facts to be recorded in the result, and the share of
    GPUs that the cell was given, where that is known.

    on_epoch: by answering True it asks the cell to leave when that epoch's checkpoint is written.
    notice: SIGTERM asks for the same; a second one ends the process.
    """

    labels: Labels = field(default_factory=Labels)
    on_epoch: Callable[[Row], object] = lambda row: None
    dead: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    gpus: float | None = None
    notice: Notice | None = None


def run(cell: Cell, places: Places, wishes: Wishes | None = None) -> dict[str, Any]:
    """Run `cell`, or return its result if it is finished and `rerun` lets that count.

    Continues from resume.ckpt when an earlier run of the same code was cut short; a damaged one, or
    of other code, is dropped with a line. A failure is written to error.txt and raised. Raises
    ClaimedElsewhereError when another process runs the cell, LeftEarlyError when
    `wishes.on_epoch` asked it to leave, ConfigError, before all else, for a `_target_` that may not
    be called: a cell may have come from anywhere.
    """
    build.check_targets(cell.config)
    ledger, wishes = Ledger(places.ledger), wishes or Wishes()
    with lease.hold_lease(ledger.disk, cell.signature, wishes.dead) as held:
        cell_directory.recover(ledger, cell.signature)
        finished = _finished(ledger, cell)
        if finished is not None:
            return finished
        scratch = places.storage / "scratch"
        directory = cell_directory.open_directory(ledger, cell.signature, scratch)
        try:
            directory.start(cell, said := provenance.of(cell, wishes.labels))
            if more := checkpoint.resumed(directory, said):
                directory.describe(said | more)
            return _run_guarded(cell, places, directory, wishes, held)
        finally:
            directory.close()


def _finished(ledger: Ledger, cell: Cell) -> dict[str, Any] | None:
    rerun, result = cell.config["rerun"], ledger.result(cell.signature)
    if result is None or rerun == "always":
        return None
    made_by = result.get("code", {}).get("numerics")
    if rerun == "stale" and made_by != code_identity.numerics(cell.config):
        return None
    return result


def _run_guarded(
    cell: Cell, places: Places, directory: CellDirectory, wishes: Wishes, held: Lease | None
) -> dict[str, Any]:
    try:
        return _run(cell, places, directory, wishes, held)
    except SystemExit as error:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from error
    except (lease.ClaimLostError, CodeChangedError, LeftEarlyError, WorkerLostError):
        raise  # the folder is another process's now; or it goes on later, and did not fail
    except Exception as error:  # whatever it is, it is written down and raised
        if wishes.notice is not None and wishes.notice.given:
            # Slurm's SIGTERM goes to every process of a job: those that read batches are gone.
            raise LeftEarlyError("it was told to end; its last checkpoint is kept") from error
        _write_down(directory, error)
        raise
    finally:
        # Trainer, module and data refer to each other: without this, a worker that runs one cell
        # after the other holds the data sets of several.
        gc.collect()


def _write_down(directory: CellDirectory, error: Exception) -> None:
    try:
        directory.fail(error)
    except OSError as full:  # what failed first is raised, and told by whoever asked for the cell
        print(f"the failure could not be written down: {full}", file=sys.stderr, flush=True)


def _run(
    cell: Cell, places: Places, directory: CellDirectory, wishes: Wishes, held: Lease | None
) -> dict[str, Any]:
    count = devices.of(cell.config)
    with _tracked(cell, places, wishes.labels) as tracker:
        hearing = Hearing(
            check=(lambda: None) if held is None else held.raise_if_lost,
            epoch=lambda row: _told(tracker, wishes, row),
            again=tracker.log,
            notice=wishes.notice,
        )
        asked = cell, places, directory, hearing, wishes.gpus
        result = fit.fit(*asked) if count == 1 else _on_several(count, *asked)
        result |= _tell(tracker, result, directory)
        if anew := directory.provenance().get(checkpoint.ANEW):
            result[checkpoint.ANEW] = anew
        if held is not None:
            held.raise_if_lost()
        finished = directory.finish(result | wishes.facts)
        tracker.mark(Ledger(places.ledger), places.storage, cell.signature)
        return finished


def _told(tracker: Tracker, wishes: Wishes, row: Row) -> bool:
    """Whether the cell is asked to leave."""
    tracker.log(row)
    return wishes.on_epoch(row) is True


def _on_several(count: int, *asked: Any) -> dict[str, Any]:
    """By processes of their own, which one device does without."""
    from capsweep.training import ranks

    return ranks.fit(count, *asked)


def _tell(tracker: Tracker, result: dict[str, Any], directory: CellDirectory) -> dict[str, Any]:
    """Send what is known at the end; what went wrong with that, and what it took."""
    tracker.summarise(content.summary(result))
    tracker.files(directory.path)
    tracker.close(exit_code=0)
    return {
        "tracking_fault": tracker.fault,
        "tracking_seconds": tracker.seconds,
        "tracking_url": tracker.url,
    }


@contextlib.contextmanager
def _tracked(cell: Cell, places: Places, labels: Labels) -> Iterator[Tracker]:
    tracker = trackers.tracker(cell, places.storage, labels)
    try:
        yield tracker
    finally:
        tracker.close(exit_code=1)  # a run that went well is closed already
