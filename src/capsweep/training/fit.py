"""One cell trained and tested; writes its files.

Shape letters: M test examples, N classes, L classes shown in one image, K worst, C H W image.
"""

import logging
import time
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from capsweep.runtime.lightning import Callback, LightningEnvironment, Trainer

# isort: split
from torchvision.utils import save_image

from capsweep.config import code_identity
from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.config.validation import count_validation_examples
from capsweep.data.batches import EvaluatedSplit, EvaluationLoader, seed_of
from capsweep.data.splits import EVALUATION_BATCH, PreparedSplits
from capsweep.errors import LeftEarlyError
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.ledger.ledger import EVALUATIONS
from capsweep.ledger.stored_files import DATA
from capsweep.model.convolution import describe_methods
from capsweep.model.routing import describe_routing
from capsweep.runtime.terminal import count_of
from capsweep.statistics import examples
from capsweep.training import build, callbacks, devices, provenance
from capsweep.training.callbacks import EpochRecorder, FirstActivations, RecordRow, ResumeCheckpoint
from capsweep.training.module import CapsuleTask
from capsweep.training.run_hooks import RunHooks

WORST, WORST_COUNT = "worst-examples", 25
COLUMNS, SCALE = 5, 3  # of their sheet: pictures in a row, pixels of one of theirs
# Lightning asks torch for what is deprecated, and looks for an srun that starts nothing here.
IGNORED_WARNINGS = (
    ".*LeafSpec.*is deprecated",
    "The `srun` command is available",
)


def make_task(cell: Cell) -> CapsuleTask:
    """Return the network, its weights drawn from the seed, with its objective and optimiser.

    Raises ConfigError where this node has no device for the cell.
    """
    config = cell.config
    devices.prepare_device(config)
    torch.manual_seed(seed_of(config["seed"], "weights"))
    network = build.build_network(config, devices.choose_device(config).type)
    objective, optimizer = build.build_objective(config), build.build_optimizer(config)
    return CapsuleTask(network, objective, optimizer, config)


def fit(
    cell: Cell,
    places: Places,
    directory: CellDirectory,
    hooks: RunHooks,
    record_row: RecordRow,
    gpus: float | None,
) -> dict[str, Any]:
    """Train and test a cell, on from its resume.ckpt, and write its files; the result so far.

    record_row: writes a row of metrics.jsonl or steps.jsonl. gpus: the share that it was given,
    where that is known. Raises LeftEarlyError where a hook ended it.
    """
    started, device = time.monotonic(), devices.choose_device(cell.config)
    devices.start_memory_peak()
    if device.type == "cpu":
        devices.keep_freed_memory()
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    torch.set_num_threads(cell.config["trainer"]["threads"])
    task = make_task(cell)
    splits = build.load_splits(cell.config, str(places.data), device)
    recorder = EpochRecorder(task, directory, hooks, record_row, splits.digests)
    keeper = ResumeCheckpoint(directory, cell.config["trainer"]["checkpoint_interval"], recorder)
    first = FirstActivations()
    trainer = _make_trainer(cell.config, device, [recorder, keeper, first])
    _fit_and_test(trainer, task, splits, keeper)
    _record_methods(directory, task)
    callbacks.check_reached(recorder.accuracy, recorder.rows)
    # What an unbroken run would have taken: epochs count for the cost of a cell whoever ran them.
    seconds = recorder.earlier_seconds + time.monotonic() - started
    given = (gpus or 1.0) if device.type == "cuda" else 0.0
    result = _summarise_run(cell, task, splits, recorder) | {
        "gpu_hours": given * seconds / 3600,
        "first_activations": first.quantiles,
    }
    result["seconds"]["total"] = seconds
    scores_MN, labels_M = task.predictions()
    scores, labels = scores_MN.float().numpy(), labels_M.numpy()
    arrays: dict[str, Any] = {"scores": scores, "labels": labels}
    directory.write("predictions.npz", lambda file: np.savez_compressed(file, **arrays))
    write_worst_examples(directory, scores, labels, splits["test"])
    directory.write("weights.ckpt", lambda file: torch.save(task.network.state_dict(), file))
    if cell.config["logger"]["name"] == "csv":
        directory.write_metrics_csv(recorder.rows)
    return result


def _make_trainer(
    config: Mapping[str, Any], device: torch.device, called: list[Callback]
) -> Trainer:
    limit = config["limit_batches"] or 1.0
    return Trainer(
        max_epochs=config["epochs"],
        accelerator=device.type,
        devices=1,
        plugins=[LightningEnvironment()],  # else Lightning would detect an unrelated Slurm job
        callbacks=called,
        limit_train_batches=limit,
        limit_val_batches=limit if count_validation_examples(config["dataset"]) else 0,
        limit_test_batches=limit,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=True,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _fit_and_test(
    trainer: Trainer, task: CapsuleTask, splits: PreparedSplits, keeper: ResumeCheckpoint
) -> None:
    resume = keeper.path if keeper.path.exists() else None
    train = splits["train"].make_loader(task.config["batch_size"], task.config["seed"])
    validation, test = (
        EvaluationLoader(splits[n], EVALUATION_BATCH) for n in ("validation", "test")
    )
    with warnings.catch_warnings():
        for message in IGNORED_WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        try:
            trainer.fit(task, train, validation, ckpt_path=resume, weights_only=True)
        finally:  # the test, and after a failure the next cell, have the memory of the graphs
            if task.captured is not None:
                task.captured.release()
        if keeper.has_left:
            done = trainer.current_epoch
            raise LeftEarlyError(f"it left after {count_of(done, 'epoch')}; its checkpoint is kept")
        trainer.test(task, test, verbose=False)


def _record_methods(directory: CellDirectory, task: CapsuleTask) -> None:
    """Add to the provenance what the network was computed by, which is known once it ran."""
    stored, routing = directory.read_provenance(), describe_routing(task.network)
    ran = {} if routing is None else {"routing": routing}
    stored["implementations"] = stored.get("implementations", {}) | ran
    stored["convolutions"] = describe_methods(task.network)
    if task.captured is not None:  # it has trained, not only tested
        stored["graphs"] = task.captured.describe()
    directory.update_provenance(stored)


def _summarise_run(
    cell: Cell, task: CapsuleTask, splits: PreparedSplits, recorder: EpochRecorder
) -> dict[str, Any]:
    """The result without its total duration."""
    epochs, steps = len(recorder.rows), recorder.rows[-1]["step"]
    fit_seconds = sum(row["seconds"] for row in recorder.rows)
    images = min(len(splits["train"]) * epochs, steps * cell.config["batch_size"])
    return {
        "status": "finished",
        "signature": cell.signature,
        "metrics": task.epoch_metrics,
        "epochs": epochs,
        "steps": steps,
        "parameters": sum(parameter.numel() for parameter in task.network.parameters()),
        "seconds": {"fit": fit_seconds},
        "shape": cell.shape,
        "hardware": provenance.name_hardware(),
        "images_per_second": images / fit_seconds,
        "peak_memory_bytes": devices.read_memory_peak(),
        DATA: splits.digests,
        "test_sha256": splits.test_fingerprint,
        "code": {
            "numerics": code_identity.hash_numerics(cell.config),
            "package": code_identity.hash_package(),
        },
    }


def write_worst_examples(
    directory: CellDirectory, scores_MN: np.ndarray, labels: np.ndarray, test: EvaluatedSplit
) -> None:
    """Write evals/worst-examples.npz and .png of at most 25 wrongly classified test examples: later
    neither data nor network are needed to show them. Write nothing where all are right.

    In the .npz: indices [K] among the test examples, labels and predictions [K, L], margins [K] by
    which a wrong class won, the largest first, scores [K, N], images uint8 [K, C, H, W]; and the
    caption of the picture.
    """
    wrong, margins = examples.find_worst(scores_MN, labels, len(labels))
    if not len(wrong):
        return
    indices_K = wrong[:WORST_COUNT]
    labels_KL = labels.reshape(len(labels), -1)[indices_K]
    predictions_KL = examples.predict_classes(scores_MN[indices_K], labels_KL.shape[1])
    images_KCHW = _present_images(test, indices_K.tolist())
    names = (map(_join_classes, classes) for classes in (labels_KL, predictions_KL))
    taken = ", ".join(map(" as ".join, zip(*names, strict=True)))
    caption = (
        f"{len(indices_K)} of {len(wrong)} wrongly classified test examples, those of which a "
        "wrong class was the surest: the margin of its score over the label's falls from left "
        f"to right and from row to row; each label and what it was taken for: {taken}"
    )
    file: dict[str, Any] = {
        "indices": indices_K,
        "labels": labels_KL,
        "predictions": predictions_KL,
        "margins": margins[:WORST_COUNT],
        "scores": scores_MN[indices_K],
        "images": images_KCHW.numpy(),
        "caption": np.array(caption),
    }
    colours = 3 if images_KCHW.shape[1] == 3 else 1  # of other channels the first
    sheet = F.interpolate(images_KCHW[:, :colours] / 255, scale_factor=SCALE)
    write_sheet: Any = partial(save_image, sheet, format="png", nrow=COLUMNS)
    directory.write(f"{EVALUATIONS}/{WORST}.npz", lambda to: np.savez_compressed(to, **file))
    directory.write(f"{EVALUATIONS}/{WORST}.png", write_sheet)


def _join_classes(classes_L: np.ndarray) -> str:
    return " ".join(map(str, sorted(classes_L.tolist())))


def _present_images(test: EvaluatedSplit, indices: list[int]) -> Tensor:
    """uint8 [K, C, H, W], as the network was shown them; what leaves 0..1 is scaled into it."""
    images = [test.evaluation_batch(slice(i, i + 1)).images_BCHW for i in indices]
    images_KCHW = torch.cat(images).float()
    low_K111 = images_KCHW.amin(dim=(1, 2, 3), keepdim=True).clamp(max=0)
    high_K111 = images_KCHW.amax(dim=(1, 2, 3), keepdim=True).clamp(min=1)
    return ((images_KCHW - low_K111) / (high_K111 - low_K111) * 255).round().byte().cpu()
