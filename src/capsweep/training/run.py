"""run(cell, places) -> result: one training run, from configuration to the ledger."""

import contextlib
import gc
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from pytorch_lightning import Trainer

from capsweep.config.cell import Cell, folder
from capsweep.config.places import Places
from capsweep.data.module import ImageDataModule
from capsweep.data.order import seed_of
from capsweep.training import build, memory, provenance, tracking
from capsweep.training.callbacks import EpochRecorder, ResumeCheckpoint, Row
from capsweep.training.cell_directory import CellDirectory
from capsweep.training.module import CapsuleTask
from capsweep.training.tracking import Labels, Tracker

PRECISION: Mapping[str, Literal["32-true", "bf16-mixed"]] = {
    "32": "32-true",
    "bf16-mixed": "bf16-mixed",
}


def run(
    cell: Cell,
    places: Places,
    labels: Labels | None = None,
    on_epoch: Callable[[Row], object] | None = None,
) -> dict[str, Any]:
    """Run `cell`, or return its result if it is finished and `rerun` is never.

    Continues from resume.ckpt when an earlier run was cut short. A failure is written to error.txt
    and raised; `on_epoch` is told every epoch's row.
    """
    directory = CellDirectory(folder(places.ledger, cell.signature))
    finished = directory.result()
    if finished is not None and cell.config["rerun"] == "never":
        return finished
    directory.start(cell, provenance.of(cell))
    try:
        return _run(cell, places, directory, labels or Labels(), on_epoch)
    except SystemExit as error:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from error
    except Exception as error:  # whatever it is, it is written down and raised
        directory.fail(error)
        raise
    finally:
        # Trainer, module and data refer to each other: without this, a worker that runs one cell
        # after the other holds the data sets of several.
        gc.collect()


def _run(
    cell: Cell,
    places: Places,
    directory: CellDirectory,
    labels: Labels,
    on_epoch: Callable[[Row], object] | None,
) -> dict[str, Any]:
    started = time.monotonic()
    memory.start_peak()
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    torch.set_num_threads(cell.config["trainer"]["threads"])
    with _tracked(cell, places, labels) as tracker:
        task, data = _task(cell), _data(cell, places)
        listeners = [tracker.log] if on_epoch is None else [tracker.log, on_epoch]
        recorder = EpochRecorder(task, directory, listeners)
        trainer = _trainer(cell, directory, recorder)
        _fit_and_test(trainer, task, data, directory)
        result = _result(cell, task, data, recorder.rows, time.monotonic() - started)
        directory.write_predictions(*task.predictions())
        directory.write_weights(task.network)
        if cell.config["logger"]["name"] == "csv":
            directory.write_metrics_csv(recorder.rows)
        tracker.summarise(result["metrics"] | {"params": result["parameters"]})
        tracker.close(exit_code=0)
        result |= {"tracking_fault": tracker.fault}
        directory.finish(result)
    return result


@contextlib.contextmanager
def _tracked(cell: Cell, places: Places, labels: Labels) -> Iterator[Tracker]:
    tracker = tracking.tracker(cell, places.storage, labels)
    try:
        yield tracker
    finally:
        tracker.close(exit_code=1)  # a run that went well is closed already


def _task(cell: Cell) -> CapsuleTask:
    config = cell.config
    torch.manual_seed(seed_of(config["seed"], "weights"))
    return CapsuleTask(
        build.network(config),
        build.objective(config),
        build.optimizer(config),
        config["optim"]["schedule"],
        config["seed"],
    )


def _data(cell: Cell, places: Places) -> ImageDataModule:
    dataset = cell.config["dataset"]
    return ImageDataModule(
        reader=build.reader(cell.config),
        folder=str(places.data),
        batch_size=cell.config["batch_size"],
        shift=dataset["shift"],
        validation=dataset["validation"],
        seed=cell.config["seed"],
    )


def _trainer(cell: Cell, directory: CellDirectory, recorder: EpochRecorder) -> Trainer:
    config = cell.config
    limit = config["limit_batches"] or 1.0
    return Trainer(
        max_epochs=config["epochs"],
        accelerator=config["trainer"]["accelerator"],
        devices=1,
        precision=PRECISION[config["precision"]],
        callbacks=[
            recorder,
            ResumeCheckpoint(directory, config["trainer"]["checkpoint_interval"]),
        ],
        limit_train_batches=limit,
        limit_val_batches=limit if config["dataset"]["validation"] else 0,
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
    cell: Cell, task: CapsuleTask, data: ImageDataModule, rows: list[Row], seconds: float
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
        "images_per_second": images / fit_seconds,
        "peak_memory_bytes": memory.peak(),
    }
