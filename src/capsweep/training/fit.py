"""One cell trained and tested; writes its files.

Shape letters: M test examples, N classes, L classes shown in one image, K worst, C H W image.
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
COLUMNS, SCALE = 5, 3  # of their sheet: pictures in a row, pixels of one of theirs


def train_and_test(
    job: Job, here: Places, directory: CellDirectory, hooks: RunHooks, record_row: RecordRow
) -> dict[str, Any]:
    """Train and test a cell, on from its resume.ckpt, and write its files; the result so far.

    record_row: writes a row of metrics.jsonl or steps.jsonl. Raises LeftEarlyError where a hook
    ended it.
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
    # What an unbroken run would have taken: epochs count for the cost of a cell whoever ran them.
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
        "test_sha256": splits["test"].fingerprint(),
    }


class FirstActivations(Callback):
    """Notes the quantiles of every layer's activations in the very first training step: too silent
    or too saturated, nothing is learned. "About half of the capsules should be active at the start"
    (the authors of "Matrix capsules with EM routing", on their choice of first weights).

    `quantiles`: layer -> quantile -> activation; nothing of layers without capsules. It looks
    at the forward pass that the step makes anyway, and travels in the checkpoint.
    """

    def __init__(self) -> None:
        self.quantiles: dict[str, dict[str, float]] = {}
        self.hooks: list[RemovableHandle] = []

    def state_dict(self) -> dict[str, Any]:
        return {"quantiles": self.quantiles}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.quantiles = dict(state_dict["quantiles"])

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step > 0:
            return
        for name, module in pl_module.get_submodule("network").named_modules():
            note = partial(self._note_activations, name)
            self.hooks.append(module.register_forward_hook(note))

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        while self.hooks:
            self.hooks.pop().remove()

    def _note_activations(self, name: str, module: nn.Module, _: Any, output: Any) -> None:
        active = find_activations(module, output)
        if active is not None:
            self.quantiles[name] = measure_quantiles(active.detach().float())


def find_activations(module: nn.Module, output: Any) -> Tensor | None:
    """Of the capsules that a layer returned; None for other layers, and for the routing inside a
    layer, which returns what the layer does.
    """
    if isinstance(module, PrimaryCapsules):
        return torch.linalg.vector_norm(output, dim=-1)
    if isinstance(output, Routed):
        return output.act_BJ if hasattr(module, "routing") else None
    return getattr(output, "act_BNI", None)  # layers of matrix capsules


def measure_quantiles(active: Tensor) -> dict[str, float]:
    """By name: q0, q10, ..., q100."""
    # torch.quantile takes no more than 2^24 values.
    levels = np.quantile(active.cpu().numpy(), QUANTILES).tolist()
    return {f"q{100 * q:.0f}": value for q, value in zip(QUANTILES, levels, strict=True)}


def write_worst_examples(
    directory: CellDirectory, scores_MN: np.ndarray, labels: np.ndarray, test: EvaluatedSplit
) -> None:
    """Write evals/worst-examples.npz and .png of at most 25 wrongly classified test examples: later
    neither data nor network are needed to show them. Write nothing where all are right.

    In the .npz: indices [K] among the test examples, labels and predictions [K, L], margins [K] by
    which a wrong class won, the largest first; and the caption of the picture, in which intensities
    that leave 0..1 are scaled into it.
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
        f"{len(indices_K)} of {len(wrong)} wrongly classified test examples, those of which a "
        "wrong class was the surest: the margin of its score over the label's falls from left "
        f"to right and from row to row; each label and what it was taken for: {taken}"
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
    colours = 3 if images_KCHW.shape[1] == 3 else 1  # of other channels the first
    sheet = F.interpolate(images_KCHW[:, :colours], scale_factor=SCALE)
    write_sheet: Any = partial(
        save_image, sheet, format="png", nrow=COLUMNS, normalize=True, scale_each=True
    )
    directory.write(f"{EVALUATIONS}/{WORST}.npz", lambda to: np.savez_compressed(to, **file))
    directory.write(f"{EVALUATIONS}/{WORST}.png", write_sheet)


def _join_classes(classes_L: np.ndarray) -> str:
    return " ".join(map(str, sorted(classes_L.tolist())))
