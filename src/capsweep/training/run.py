"""run(cell, places) -> result: one training run, from configuration to the ledger."""

import contextlib
import gc
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback, Trainer

from capsweep.config import code_identity
from capsweep.config.cell import Cell
from capsweep.config.data_rules import validated
from capsweep.config.places import Places
from capsweep.config.shape import shape
from capsweep.data.module import ImageDataModule
from capsweep.ledger import cell_directory, claim
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.ledger.claim import Held
from capsweep.ledger.ledger import Ledger
from capsweep.tracking import content
from capsweep.tracking import tracker as trackers
from capsweep.tracking.labels import Labels
from capsweep.tracking.tracker import Tracker
from capsweep.training import assemble, memory, provenance, stop, worst_examples
from capsweep.training.callbacks import EpochRecorder, ResumeCheckpoint, Row
from capsweep.training.first_activations import FirstActivations
from capsweep.training.measurement import hardware
from capsweep.training.module import CapsuleTask
from capsweep.training.stop import StopAtAccuracy


@dataclass(frozen=True)
class Wishes:
    """What the caller adds to a cell: labels of its W&B run, who is told every epoch's row, the
    generation of a dead claim to take over, facts to be recorded in the result, and the share of
    GPUs that the cell was given, where that is known.
    """

    labels: Labels = field(default_factory=Labels)
    on_epoch: Callable[[Row], object] = lambda row: None
    dead: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    gpus: float | None = None


def run(cell: Cell, places: Places, wishes: Wishes | None = None) -> dict[str, Any]:
    """Run `cell`, or return its result if it is finished and `rerun` lets that count.

    Continues from resume.ckpt when an earlier run was cut short. A failure is written to error.txt
    and raised. Raises ClaimedElsewhereError when another process runs the cell.
    """
    ledger, wishes = Ledger(places.ledger), wishes or Wishes()
    with claim.held(ledger.disk, cell.signature, wishes.dead) as held:
        cell_directory.recover(ledger, cell.signature)
        finished = _finished(ledger, cell)
        if finished is not None:
            return finished
        scratch = places.storage / "scratch"
        directory = cell_directory.open_directory(ledger, cell.signature, scratch)
        directory.start(cell, provenance.of(cell, wishes.labels))
        return _run_guarded(cell, places, directory, wishes, held)


def _finished(ledger: Ledger, cell: Cell) -> dict[str, Any] | None:
    rerun, result = cell.config["rerun"], ledger.result(cell.signature)
    if result is None or rerun == "always":
        return None
    made_by = result.get("code", {}).get("numerics")
    if rerun == "stale" and made_by != code_identity.numerics(cell.config):
        return None
    return result


def _run_guarded(
    cell: Cell, places: Places, directory: CellDirectory, wishes: Wishes, held: Held | None
) -> dict[str, Any]:
    try:
        return _run(cell, places, directory, wishes, held)
    except SystemExit as error:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from error
    except claim.ClaimLostError:  # the folder is another process's now
        raise
    except Exception as error:  # whatever it is, it is written down and raised
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
    cell: Cell, places: Places, directory: CellDirectory, wishes: Wishes, held: Held | None
) -> dict[str, Any]:
    started = time.monotonic()
    memory.start_peak()
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    torch.set_num_threads(cell.config["trainer"]["threads"])
    with _tracked(cell, places, wishes.labels) as tracker:
        task, data = assemble.task(cell), assemble.data(cell, places)
        told = [tracker.log, wishes.on_epoch]
        recorder = EpochRecorder(task, directory, told, held, tell_again=tracker.log)
        first = FirstActivations()
        trainer = _trainer(cell, directory, recorder, first)
        _fit_and_test(trainer, task, data, directory)
        if cell.config["stop_accuracy"] is not None:
            stop.check_reached(cell.config["stop_accuracy"], recorder.rows)
        gpus = (wishes.gpus or 1.0) if trainer.strategy.root_device.type == "cuda" else 0.0
        result = _result(cell, task, data, recorder.rows, time.monotonic() - started, gpus)
        result["first_activations"] = first.found
        _write_outputs(directory, task, data)
        if cell.config["logger"]["name"] == "csv":
            directory.write_metrics_csv(recorder.rows)
        result |= _tell(tracker, result, directory)
        if held is not None:
            held.check()
        finished = directory.finish(result | wishes.facts)
        tracker.mark(Ledger(places.ledger), places.storage, cell.signature)
        return finished


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


def _write_outputs(directory: CellDirectory, task: CapsuleTask, data: ImageDataModule) -> None:
    scores_MN, labels_M = task.predictions()
    scores, labels = scores_MN.float().numpy(), labels_M.numpy()
    directory.write(
        "predictions.npz", lambda file: np.savez_compressed(file, scores=scores, labels=labels)
    )
    worst_examples.write(directory, scores, labels, data.test_dataloader().examples)
    directory.write("weights.ckpt", lambda file: torch.save(task.network.state_dict(), file))


@contextlib.contextmanager
def _tracked(cell: Cell, places: Places, labels: Labels) -> Iterator[Tracker]:
    tracker = trackers.tracker(cell, places.storage, labels)
    try:
        yield tracker
    finally:
        tracker.close(exit_code=1)  # a run that went well is closed already


def _trainer(
    cell: Cell, directory: CellDirectory, recorder: EpochRecorder, first: FirstActivations
) -> Trainer:
    config = cell.config
    limit = config["limit_batches"] or 1.0
    callbacks: list[Callback] = [
        recorder,
        ResumeCheckpoint(directory, config["trainer"]["checkpoint_interval"]),
        first,
    ]
    if config["stop_accuracy"] is not None:
        callbacks.append(StopAtAccuracy(config["stop_accuracy"], recorder))
    return Trainer(
        max_epochs=config["epochs"],
        accelerator=config["trainer"]["accelerator"],
        devices=1,
        precision=assemble.PRECISION[config["precision"]],
        callbacks=callbacks,
        gradient_clip_val=config["optim"]["clip_norm"],
        limit_train_batches=limit,
        limit_val_batches=limit if validated(config["dataset"]) else 0,
        limit_test_batches=limit,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=True,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )


def _fit_and_test(
    trainer: Trainer, task: CapsuleTask, data: ImageDataModule, directory: CellDirectory
) -> None:
    resume = directory.resume_checkpoint
    with warnings.catch_warnings():
        # Lightning 2.6 asks torch 2.13 for a name it is about to drop.
        warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated")
        trainer.fit(
            task,
            datamodule=data,
            ckpt_path=resume if resume.exists() else None,
            weights_only=True,
        )
        trainer.test(task, datamodule=data, verbose=False)


def _result(
    cell: Cell,
    task: CapsuleTask,
    data: ImageDataModule,
    rows: list[Row],
    seconds: float,
    gpus: float,
) -> dict[str, Any]:
    fit_seconds = sum(row["seconds"] for row in rows)
    steps = rows[-1]["step"]
    images = min(data.num_train * len(rows), steps * cell.config["batch_size"])
    return {
        "status": "finished",
        "signature": cell.signature,
        "metrics": task.epoch_metrics,
        "epochs": len(rows),
        "steps": steps,
        "parameters": sum(parameter.numel() for parameter in task.network.parameters()),
        "seconds": {"fit": fit_seconds, "total": seconds},
        "shape": shape(cell),
        "hardware": hardware(),
        "images_per_second": images / fit_seconds,
        "gpu_hours": gpus * seconds / 3600,
        "peak_memory_bytes": memory.peak(),
        "test_sha256": data.test_fingerprint(),
        "code": {
            "numerics": code_identity.numerics(cell.config),
            "package": code_identity.package(),
        },
    }
