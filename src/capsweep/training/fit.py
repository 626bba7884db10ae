"""One cell trained and tested, by this process or by several that share it; writes its files."""

import logging
import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ReduceOp

from capsweep.config import code_identity
from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.config.shape import shape
from capsweep.config.validation import count_validation_examples
from capsweep.data.module import ImageDataModule
from capsweep.errors import LeftEarlyError
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.lightning import Callback, LightningEnvironment, Trainer
from capsweep.training import assemble, callbacks, devices, distributed, hardware, worst_examples
from capsweep.training.callbacks import EpochRecorder, StopAtAccuracy
from capsweep.training.checkpoint import ResumeCheckpoint
from capsweep.training.first_activations import FirstActivations
from capsweep.training.module import CapsuleTask
from capsweep.training.run_hooks import Row, RunHooks


def fit(
    cell: Cell,
    places: Places,
    directory: CellDirectory,
    hooks: RunHooks,
    gpus: float | None,
    count: int = 1,
    strategy: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train and test a cell, on from its resume.ckpt, and write its files; the result so far.

    gpus: the share that it was given, where that is known. count: the devices that train it; each
    has a process that calls this with its own `strategy` for Lightning. The first one writes, and
    the results of the others are without meaning. Raises LeftEarlyError where a hook ended it.
    """
    started = time.monotonic()
    devices.start_memory_peak()
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    torch.set_num_threads(devices.threads_per_device(cell.config, count))
    task, data = assemble.make_task(cell, count), assemble.make_data(cell, places)
    recorder, first = EpochRecorder(task, directory, hooks), FirstActivations()
    keeper = ResumeCheckpoint(directory, cell.config["trainer"]["checkpoint_interval"], recorder)
    trainer = _make_trainer(cell, recorder, [recorder, keeper, first], strategy)
    _fit_and_test(trainer, task, data, keeper)
    if cell.config["stop_accuracy"] is not None:
        callbacks.check_reached(cell.config["stop_accuracy"], recorder.rows)
    given = (gpus or float(count)) if trainer.strategy.root_device.type == "cuda" else 0.0
    # What an unbroken run would have taken: epochs count for the cost of a cell whoever ran them.
    seconds = recorder.earlier_seconds + time.monotonic() - started
    predictions = task.predictions()
    result = _summarise(cell, task, data, recorder.rows, count)
    result["seconds"]["total"], result["gpu_hours"] = seconds, given * seconds / 3600
    result["first_activations"] = first.quantiles
    if trainer.is_global_zero:
        _write_outputs(directory, task, data, predictions)
        if cell.config["logger"]["name"] == "csv":
            directory.write_metrics_csv(recorder.rows)
    return result


def _write_outputs(
    directory: CellDirectory,
    task: CapsuleTask,
    data: ImageDataModule,
    predictions: tuple[Tensor, Tensor],
) -> None:
    scores_MN, labels_M = predictions
    scores, labels = scores_MN.float().numpy(), labels_M.numpy()
    directory.write(
        "predictions.npz", lambda file: np.savez_compressed(file, scores=scores, labels=labels)
    )
    worst_examples.write_worst_examples(directory, scores, labels, data.test_dataloader().examples)
    directory.write("weights.ckpt", lambda file: torch.save(task.network.state_dict(), file))


def _make_trainer(
    cell: Cell,
    recorder: EpochRecorder,
    callbacks: list[Callback],
    strategy: Mapping[str, Any] | None,
) -> Trainer:
    config = cell.config
    # Lightning would look for a cluster by itself, and find a Slurm that is none of its business.
    alone = {"devices": 1, "plugins": [LightningEnvironment()]}
    alone["accelerator"] = config["trainer"]["accelerator"]
    limit = config["limit_batches"] or 1.0
    if config["stop_accuracy"] is not None:
        callbacks.append(StopAtAccuracy(config["stop_accuracy"], recorder))
    return Trainer(
        max_epochs=config["epochs"],
        **(alone if strategy is None else strategy),
        precision=assemble.PRECISION[config["precision"]],
        callbacks=callbacks,
        gradient_clip_val=config["optim"]["clip_norm"],
        limit_train_batches=limit,
        limit_val_batches=limit if count_validation_examples(config["dataset"]) else 0,
        limit_test_batches=limit,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=True,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )


def _fit_and_test(
    trainer: Trainer, task: CapsuleTask, data: ImageDataModule, keeper: ResumeCheckpoint
) -> None:
    resume = keeper.path
    with warnings.catch_warnings():
        # Lightning 2.6 asks torch 2.13 for a name it is about to drop.
        warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated")
        # What it is renamed to is unknown to earlier versions of torch.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
        # Here it is not Slurm's srun that starts processes.
        warnings.filterwarnings("ignore", message="The `srun` command is available")
        trainer.fit(
            task,
            datamodule=data,
            ckpt_path=resume if resume.exists() else None,
            weights_only=True,
        )
        if keeper.has_left:
            done = trainer.current_epoch
            raise LeftEarlyError(f"it left after {done} epochs; its checkpoint is kept")
        trainer.test(task, datamodule=data, verbose=False)


def _summarise(
    cell: Cell, task: CapsuleTask, data: ImageDataModule, rows: list[Row], count: int
) -> dict[str, Any]:
    """The result without its total duration."""
    code_identity.check_imported()
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
        "seconds": {"fit": fit_seconds},
        "shape": shape(cell),
        "devices": count,
        "hardware": hardware.name_hardware(count),
        "images_per_second": images / fit_seconds,
        "peak_memory_bytes": _reduce_memory_peak(),
        "test_sha256": data.test_fingerprint(),
        "code": {
            "numerics": code_identity.numerics(cell.config),
            "package": code_identity.package(),
        },
    }


def _reduce_memory_peak() -> dict[str, int | None]:
    """As `devices.memory_peak`: of all processes together, and of the GPU that needed most."""
    peak = devices.memory_peak()
    for kind, operation in (("process", ReduceOp.SUM), ("gpu", ReduceOp.MAX)):
        if (own := peak[kind]) is not None:
            device = "cuda" if peak["gpu"] is not None else "cpu"
            peak[kind] = int(distributed.all_reduce(torch.tensor(own, device=device), operation))
    return peak
