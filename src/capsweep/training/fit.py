"""One cell trained and tested, by this process or by several that share it: its files but the last.

What is told to others, claims, Weights & Biases, whoever waits, is told through `Hearing`.
"""

import logging
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ReduceOp

from capsweep import hardware
from capsweep.config import code_identity
from capsweep.config.cell import Cell
from capsweep.config.data_rules import validated
from capsweep.config.places import Places
from capsweep.config.shape import shape
from capsweep.data.module import ImageDataModule
from capsweep.errors import LeftEarlyError
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.lightning import Callback, LightningEnvironment, Trainer
from capsweep.training import across, assemble, devices, memory, stop, worst_examples
from capsweep.training.callbacks import EpochRecorder, Hearing, ResumeCheckpoint, Row
from capsweep.training.first_activations import FirstActivations
from capsweep.training.module import CapsuleTask
from capsweep.training.stop import StopAtAccuracy

# Lightning would look for a cluster by itself, and find a Slurm that is none of its business.
ONE_DEVICE: Mapping[str, Any] = {"devices": 1, "plugins": [LightningEnvironment()]}


@dataclass(frozen=True)
class Shared:
    """One of several processes that train a cell together. trainer: what Lightning is told."""

    rank: int
    ranks: int
    trainer: Mapping[str, Any]


def fit(
    cell: Cell,
    places: Places,
    directory: CellDirectory,
    hearing: Hearing,
    gpus: float | None,
    shared: Shared | None = None,
) -> dict[str, Any]:
    """Train and test a cell, on from its resume.ckpt, and write its files; the result so far.

    gpus: the share that it was given, where that is known. shared: of several processes each calls
    this with its own; the first writes, and the results of the others are without meaning.
    Raises LeftEarlyError where it was asked to leave.
    """
    started, count = time.monotonic(), 1 if shared is None else shared.ranks
    memory.start_peak()
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    torch.set_num_threads(devices.threads(cell.config, count))
    task, data = assemble.task(cell, count), assemble.data(cell, places)
    recorder, first = EpochRecorder(task, directory, hearing), FirstActivations()
    keeper = ResumeCheckpoint(directory, cell.config["trainer"]["checkpoint_interval"], recorder)
    trainer = _trainer(cell, recorder, keeper, first, shared)
    _fit_and_test(trainer, task, data, keeper)
    if cell.config["stop_accuracy"] is not None:
        stop.check_reached(cell.config["stop_accuracy"], recorder.rows)
    given = (gpus or float(count)) if trainer.strategy.root_device.type == "cuda" else 0.0
    # What an unbroken run would have taken: epochs count for the cost of a cell whoever ran them.
    seconds = recorder.earlier_seconds + time.monotonic() - started
    predicted = task.predictions()
    result = _result(cell, task, data, recorder.rows, seconds, given, count)
    result["first_activations"] = first.found
    if trainer.is_global_zero:
        _write_outputs(directory, task, data, predicted)
        if cell.config["logger"]["name"] == "csv":
            directory.write_metrics_csv(recorder.rows)
    return result


def _write_outputs(
    directory: CellDirectory,
    task: CapsuleTask,
    data: ImageDataModule,
    predicted: tuple[Tensor, Tensor],
) -> None:
    scores_MN, labels_M = predicted
    scores, labels = scores_MN.float().numpy(), labels_M.numpy()
    directory.write(
        "predictions.npz", lambda file: np.savez_compressed(file, scores=scores, labels=labels)
    )
    worst_examples.write(directory, scores, labels, data.test_dataloader().examples)
    directory.write("weights.ckpt", lambda file: torch.save(task.network.state_dict(), file))


def _trainer(
    cell: Cell,
    recorder: EpochRecorder,
    keeper: ResumeCheckpoint,
    first: FirstActivations,
    shared: Shared | None,
) -> Trainer:
    config = cell.config
    alone = {"accelerator": config["trainer"]["accelerator"], **ONE_DEVICE}
    where = alone if shared is None else shared.trainer
    limit = config["limit_batches"] or 1.0
    callbacks: list[Callback] = [recorder, keeper, first]
    if config["stop_accuracy"] is not None:
        callbacks.append(StopAtAccuracy(config["stop_accuracy"], recorder))
    return Trainer(
        max_epochs=config["epochs"],
        **where,
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
        if keeper.left:
            done = trainer.current_epoch
            raise LeftEarlyError(f"it left after {done} epochs; its checkpoint is kept")
        trainer.test(task, datamodule=data, verbose=False)


def _result(
    cell: Cell,
    task: CapsuleTask,
    data: ImageDataModule,
    rows: list[Row],
    seconds: float,
    gpus: float,
    devices: int,
) -> dict[str, Any]:
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
        "seconds": {"fit": fit_seconds, "total": seconds},
        "shape": shape(cell),
        "devices": devices,
        "hardware": hardware.name(devices),
        "images_per_second": images / fit_seconds,
        "gpu_hours": gpus * seconds / 3600,
        "peak_memory_bytes": _peak(),
        "test_sha256": data.test_fingerprint(),
        "code": {
            "numerics": code_identity.numerics(cell.config),
            "package": code_identity.package(),
        },
    }


def _peak() -> dict[str, int | None]:
    """As `memory.peak`: of all processes together, and of the GPU that needed most."""
    found = memory.peak()
    for kind, operation in (("process", ReduceOp.SUM), ("gpu", ReduceOp.MAX)):
        if (mine := found[kind]) is not None:
            device = "cuda" if found["gpu"] is not None else "cpu"
            found[kind] = int(across.reduced(torch.tensor(mine, device=device), operation))
    return found
