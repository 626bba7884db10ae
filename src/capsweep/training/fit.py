"""Train and test one cell, and write its files.

Shape letters: M test examples, N classes, L classes shown in one image, K worst examples, C H W
image.
"""

import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from capsweep.runtime.lightning import Callback, LightningModule, Trainer

# isort: split
from torchvision.utils import save_image

from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.data.batches import EvaluatedSplit
from capsweep.data.images import PreparedSplits
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.ledger.ledger import EVALUATIONS
from capsweep.ledger.stored_files import DATA
from capsweep.model.capsules import PrimaryCapsules
from capsweep.model.convolution import describe_methods
from capsweep.model.routing import Routed, describe_routing
from capsweep.statistics import examples
from capsweep.training import RunHooks, build, callbacks, devices, provenance
from capsweep.training.callbacks import EpochRecorder, RecordRow
from capsweep.training.module import CapsuleTask, fit_and_test
from capsweep.training.run import Job

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
WORST, WORST_COUNT = "worst-examples", 25
COLUMNS, SCALE = 5, 3  # of the picture of worst examples: images per row, enlargement


def train_and_test(
    job: Job, here: Places, directory: CellDirectory, hooks: RunHooks, record_row: RecordRow
) -> dict[str, Any]:
    """Train and test a cell, and write the files of the cell.

    If the cell has a resume.ckpt, training continues from this checkpoint.

    Args:
        job: The job of the cell.
        here: The folders on this node.
        directory: The folder of the cell.
        hooks: The hooks of the run's caller.
        record_row: Writes a row to metrics.jsonl or steps.jsonl.

    Returns:
        The content of result.json, without the keys for code, date and tracking. `run` adds these
        keys.

    Raises:
        LeftEarlyError: If a hook or SIGTERM ended the run early.
        AccuracyNotReachedError: If `stop_accuracy` was not reached.
    """
    cell, started = job.cell, time.monotonic()
    device = devices.choose_device(cell.config)
    devices.start_memory_peak()
    if device.type == "cpu":
        devices.keep_freed_memory()
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    torch.set_num_threads(cell.config["trainer"]["threads"])
    task = build.make_task(cell)
    splits = build.load_splits(cell.config, str(here.data), device)
    recorder = EpochRecorder(task, directory, hooks, record_row, splits.digests)
    first, resume = FirstActivations(), directory.resume_checkpoint
    fit_and_test(task, splits, [recorder, first], resume if resume.exists() else None)
    _record_methods(directory, task)
    callbacks.check_reached(recorder.accuracy, recorder.rows)
    # The epochs of earlier runs count too: this is what an uninterrupted run would have taken.
    seconds = recorder.earlier_seconds + time.monotonic() - started
    given = (job.gpu or 1.0) if device.type == "cuda" else 0.0
    scores_MN, labels_M = task.collect_predictions()
    scores, labels = scores_MN.float().numpy(), labels_M.numpy()
    arrays: dict[str, Any] = {"scores": scores, "labels": labels}
    directory.write("predictions.npz", lambda file: np.savez_compressed(file, **arrays))
    write_worst_examples(directory, scores, labels, splits["test"])
    directory.write("weights.ckpt", lambda file: torch.save(task.network.state_dict(), file))
    return _summarise_run(cell, task, splits, recorder) | {
        "seconds": {"fit": sum(row["seconds"] for row in recorder.rows), "total": seconds},
        "gpu_hours": given * seconds / 3600,
        "first_activations": first.quantiles,
    }


def _record_methods(directory: CellDirectory, task: CapsuleTask) -> None:
    """Add to the provenance which implementations computed the network.

    The implementations are known only after the network has run.
    """
    stored, routing = directory.read_provenance(), describe_routing(task.network)
    if routing is not None:
        stored.setdefault("implementations", {})["routing"] = routing
    stored["convolutions"] = describe_methods(task.network)
    if task.captured is not None:  # the task was trained, not only tested
        stored["graphs"] = task.captured.describe()
    directory.update_provenance(stored)


def _summarise_run(
    cell: Cell, task: CapsuleTask, splits: PreparedSplits, recorder: EpochRecorder
) -> dict[str, Any]:
    """Collect metrics, counts, speed and digests of a run; the caller adds the total time."""
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
        "test_sha256": splits["test"].fingerprint(),
    }


class FirstActivations(Callback):
    """A callback that records quantiles of the activations in the very first training step.

    A network whose capsules are nearly all inactive or saturated at the start does not learn.
    "About half of the capsules should be active at the start" (the authors of "Matrix capsules with
    EM routing", on their choice of first weights). The callback reads the activations in the
    forward pass of the training step. Checkpoints contain the recorded quantiles.

    Attributes:
        quantiles: Layer -> quantile -> activation, for layers of capsules.
        hooks: The forward hooks that are registered during the first step.
    """

    def __init__(self) -> None:
        self.quantiles: dict[str, dict[str, float]] = {}
        self.hooks: list[RemovableHandle] = []

    def state_dict(self) -> dict[str, Any]:
        """Return the quantiles, for the checkpoint."""
        return {"quantiles": self.quantiles}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the quantiles of a checkpoint."""
        self.quantiles = dict(state_dict["quantiles"])

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Register a forward hook on every module before the first training step."""
        if trainer.global_step > 0:
            return
        for name, module in pl_module.get_submodule("network").named_modules():
            note = partial(self._note_activations, name)
            self.hooks.append(module.register_forward_hook(note))

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Remove the forward hooks."""
        while self.hooks:
            self.hooks.pop().remove()

    def _note_activations(self, name: str, module: nn.Module, _: Any, output: Any) -> None:
        active = find_activations(module, output)
        if active is not None:
            self.quantiles[name] = measure_quantiles(active.detach().float())


def find_activations(module: nn.Module, output: Any) -> Tensor | None:
    """Return the activations of a layer's capsules, taken from the output of the layer.

    Args:
        module: The layer, or another module of the network.
        output: The output of the module.

    Returns:
        The activations. None for modules without capsules, and for routing modules, because the
        layer that contains the routing has the same output.
    """
    if isinstance(module, PrimaryCapsules):
        return torch.linalg.vector_norm(output, dim=-1)
    if isinstance(output, Routed):
        return output.act_BJ if hasattr(module, "routing") else None
    return getattr(output, "act_BNI", None)  # layers of matrix capsules


def measure_quantiles(active: Tensor) -> dict[str, float]:
    """Return quantiles of activations, named q0, q10, ..., q100."""
    # Not torch.quantile, which takes at most 2^24 values.
    levels = np.quantile(active.cpu().numpy(), QUANTILES).tolist()
    return {f"q{100 * q:.0f}": value for q, value in zip(QUANTILES, levels, strict=True)}


def write_worst_examples(
    directory: CellDirectory, scores_MN: np.ndarray, labels: np.ndarray, test: EvaluatedSplit
) -> None:
    """Write evals/worst-examples.npz and .png with at most 25 wrongly classified test examples.

    With these files, the examples can be shown later without the data and the network. If all test
    examples are classified correctly, no file is written.

    The .npz contains four arrays, sorted by margin, the largest first: the indices [K] of the
    examples in the test split, their labels [K, L], predictions [K, L] and margins [K]. A margin is
    the highest score of a wrong class minus the lowest score of a label. The .npz also contains the
    caption of the .png. In the .png, the intensities of each image are scaled to 0..1.

    Args:
        directory: The folder of the cell.
        scores_MN: The scores of the test examples, [M, N].
        labels: The labels of the test examples, [M] or [M, L].
        test: The test split, from which the images are taken.
    """
    wrong, margins = examples.find_worst(scores_MN, labels, len(labels))
    if not len(wrong):
        return
    indices_K = wrong[:WORST_COUNT]
    labels_KL = labels.reshape(len(labels), -1)[indices_K]
    predictions_KL = examples.predict_classes(scores_MN[indices_K], labels_KL.shape[1])
    names = (map(_join_classes, classes) for classes in (labels_KL, predictions_KL))
    taken = ", ".join(map(" as ".join, zip(*names, strict=True)))
    caption = (
        f"{len(indices_K)} of {len(wrong)} wrongly classified test examples: those whose wrong "
        "class had the largest margin over the label. The margin falls from left to right and from "
        f"row to row. Each label and the class that was predicted for it: {taken}"
    )
    file: dict[str, Any] = {
        "indices": indices_K,
        "labels": labels_KL,
        "predictions": predictions_KL,
        "margins": margins[:WORST_COUNT],
        "caption": np.array(caption),
    }
    images = [test.evaluation_batch(slice(i, i + 1)).images_BCHW for i in indices_K.tolist()]
    images_KCHW = torch.cat(images).float()
    colours = 3 if images_KCHW.shape[1] == 3 else 1  # without 3 channels, only the first is shown
    sheet = F.interpolate(images_KCHW[:, :colours], scale_factor=SCALE)
    write_sheet: Any = partial(
        save_image, sheet, format="png", nrow=COLUMNS, normalize=True, scale_each=True
    )
    directory.write(f"{EVALUATIONS}/{WORST}.npz", lambda to: np.savez_compressed(to, **file))
    directory.write(f"{EVALUATIONS}/{WORST}.png", write_sheet)


def _join_classes(classes_L: np.ndarray) -> str:
    return " ".join(map(str, sorted(classes_L.tolist())))
