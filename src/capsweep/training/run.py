"""run(cell, places) -> result: one training run, from configuration to the ledger."""

import gc
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.data.splits import PreparedSplits
from capsweep.errors import LeftEarlyError
from capsweep.ledger import cell_directory
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.ledger.lease import ClaimLostError, hold_lease
from capsweep.ledger.ledger import METRICS, POINTS, Entry, Ledger
from capsweep.ledger.stored_files import DATA
from capsweep.model.convolution import describe_methods
from capsweep.model.routing import describe_routing
from capsweep.tracking import content
from capsweep.tracking.labels import Labels
from capsweep.tracking.tracker import Tracker
from capsweep.training import Row, RunHooks, build, callbacks, devices, module, outputs, provenance
from capsweep.training.callbacks import EpochRecorder, RecordRow, ResumeCheckpoint
from capsweep.training.module import CapsuleTask

CODE = ("numerics", "package")  # the hashes that a result has of its code


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

        def check_lease() -> None:
            if lease is not None:
                lease.raise_if_lost()

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
                    check_lease()
                    directory.append_row(name, row)
                    tracker.log(row)

                result = _train_and_test(cell, places, directory, hooks, record_row, gpus)
                tracker.close(0, content.summarise_result(result), directory.path)
                for name in ("fault", "seconds", "url"):
                    result[f"tracking_{name}"] = getattr(tracker, name)
                check_lease()
                result |= {"code": {name: described["code"][name] for name in CODE}}
                result |= {"finished": datetime.now(UTC).isoformat(timespec="seconds")}
                result = directory.finish({**result, **anew, **(facts or {})})
                tracker.mark_synced(ledger, places.storage, cell.signature)
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


def _train_and_test(
    cell: Cell,
    places: Places,
    directory: CellDirectory,
    hooks: RunHooks,
    record_row: RecordRow,
    gpus: float | None,
) -> dict[str, Any]:
    """Train and test a cell, on from its resume.ckpt, and write its files; the result so far.

    record_row: writes a row of metrics.jsonl or steps.jsonl. Raises LeftEarlyError where a hook
    ended it.
    """
    started, device = time.monotonic(), devices.choose_device(cell.config)
    devices.start_memory_peak()
    if device.type == "cpu":
        devices.keep_freed_memory()
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    torch.set_num_threads(cell.config["trainer"]["threads"])
    task = module.make_task(cell)
    splits = build.load_splits(cell.config, str(places.data), device)
    recorder = EpochRecorder(task, directory, hooks, record_row, splits.digests)
    keeper = ResumeCheckpoint(directory, cell.config["trainer"]["checkpoint_interval"], recorder)
    first = outputs.FirstActivations()
    resume = keeper.path if keeper.path.exists() else None
    module.fit_and_test(task, splits, [recorder, keeper, first], resume)
    _record_methods(directory, task)
    callbacks.check_reached(recorder.accuracy, recorder.rows)
    # What an unbroken run would have taken: epochs count for the cost of a cell whoever ran them.
    seconds = recorder.earlier_seconds + time.monotonic() - started
    given = (gpus or 1.0) if device.type == "cuda" else 0.0
    scores_MN, labels_M = task.predictions()
    scores, labels = scores_MN.float().numpy(), labels_M.numpy()
    arrays: dict[str, Any] = {"scores": scores, "labels": labels}
    directory.write("predictions.npz", lambda file: np.savez_compressed(file, **arrays))
    outputs.write_worst_examples(directory, scores, labels, splits["test"])
    directory.write("weights.ckpt", lambda file: torch.save(task.network.state_dict(), file))
    if cell.config["logger"]["name"] == "csv":
        directory.write_metrics_csv(recorder.rows)
    return _summarise_run(cell, task, splits, recorder) | {
        "seconds": {"fit": sum(row["seconds"] for row in recorder.rows), "total": seconds},
        "gpu_hours": given * seconds / 3600,
        "first_activations": first.quantiles,
    }


def _record_methods(directory: CellDirectory, task: CapsuleTask) -> None:
    """Add to the provenance what the network was computed by, which is known once it ran."""
    stored, routing = directory.read_provenance(), describe_routing(task.network)
    if routing is not None:
        stored.setdefault("implementations", {})["routing"] = routing
    stored["convolutions"] = describe_methods(task.network)
    if task.captured is not None:  # it has trained, not only tested
        stored["graphs"] = task.captured.describe()
    directory.update_provenance(stored)


def _summarise_run(
    cell: Cell, task: CapsuleTask, splits: PreparedSplits, recorder: EpochRecorder
) -> dict[str, Any]:
    """Return the result without what the cell has cost."""
    epochs, steps = len(recorder.rows), recorder.rows[-1]["step"]
    images = min(len(splits["train"]) * epochs, steps * cell.config["batch_size"])
    return {
        "status": "finished",
        "signature": cell.signature,
        "metrics": task.epoch_metrics,
        "epochs": epochs,
        "steps": steps,
        "parameters": sum(parameter.numel() for parameter in task.network.parameters()),
        "shape": cell.shape,
        "hardware": provenance.name_hardware(),
        "images_per_second": images / sum(row["seconds"] for row in recorder.rows),
        "peak_memory_bytes": devices.read_memory_peak(),
        DATA: splits.digests,
        "test_sha256": splits.test_fingerprint,
    }
