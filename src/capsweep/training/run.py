"""run(cell, places) -> result: one training run, from configuration to the ledger."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.errors import LeftEarlyError
from capsweep.ledger import cell_directory
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.ledger.lease import ClaimLostError, Lease, hold_lease
from capsweep.ledger.ledger import METRICS, POINTS, Entry, Ledger
from capsweep.tracking import content
from capsweep.tracking.labels import Labels
from capsweep.tracking.tracker import Tracker
from capsweep.training import build, callbacks, fit, provenance
from capsweep.training.run_hooks import Row, RunHooks


def run(
    cell: Cell,
    places: Places,
    hooks: RunHooks | None = None,
    *,
    labels: Labels | None = None,
    dead: str = "",
    facts: Mapping[str, Any] | None = None,
    gpus: float | None = None,
) -> dict[str, Any]:
    """Run `cell`, or return its result if it is finished and `rerun` lets that count.

    labels: of its W&B run. dead: the sight of a dead process's claim, to take it over. facts:
    recorded in the result. gpus: the share of GPUs that the cell was given, where that is known.

    Continues from resume.ckpt when an earlier run of the same code was cut short; a damaged one, or
    of other code, is dropped with a line. A failure is written to error.txt and raised. Raises
    ClaimedElsewhereError when another process runs the cell, LeftEarlyError when a hook ended the
    run early, ConfigError, before all else, for a `_target_` that may not be called: a cell may
    have come from anywhere.
    """
    build.check_targets(cell.config)
    ledger = Ledger(places.ledger)
    hooks, labels = hooks or RunHooks(), labels or Labels()
    with hold_lease(ledger.disk, cell.signature, dead) as lease:
        cell_directory.recover_cell(ledger, cell.signature)
        finished = _find_finished(ledger, cell)
        if finished is not None:
            return finished
        scratch = places.storage / "scratch"
        with closing(cell_directory.open_directory(ledger, cell.signature, scratch)) as directory:
            described = provenance.describe_run(cell, labels)
            directory.start(cell, described)
            earlier, rows, points = callbacks.check_resumable(directory, described)
            if earlier:
                directory.update_provenance(described | earlier)
            anew = {key: line for key, line in earlier.items() if key == callbacks.ANEW}
            with (
                _recording_failures(directory, hooks),
                closing(Tracker(cell, places.storage, described)) as tracker,
            ):
                directory.write_rows(METRICS, rows)
                directory.write_rows(POINTS, points)
                for row in content.merge_rows(rows, points):  # again: W&B may have lost them
                    tracker.log(row)

                def record_row(name: str, row: Row) -> None:
                    """Write a row to the ledger, then to W&B, unless the cell was taken over."""
                    _check_lease(lease)
                    directory.append_row(name, row)
                    tracker.log(row)

                result = fit.fit(cell, places, directory, hooks, record_row, gpus)
                tracker.close(0, content.summarise_result(result), directory.path)
                for name in ("fault", "seconds", "url"):
                    result[f"tracking_{name}"] = getattr(tracker, name)
                _check_lease(lease)
                now = datetime.now(UTC).isoformat(timespec="seconds")
                result = directory.finish({**result, **anew, **(facts or {}), "finished": now})
                tracker.mark_synced(ledger, places.storage, cell.signature)
                return result


def _check_lease(lease: Lease | None) -> None:
    if lease is not None:
        lease.raise_if_lost()


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
