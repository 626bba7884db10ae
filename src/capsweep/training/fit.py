"""Train and test one cell, and write its files.

Shape letters: M test examples, N classes, L classes shown in one image, K worst examples, C
channels, H height and W width of an image.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsweep.runtime.lightning import Callback, LightningModule, Trainer

# isort: split
from torchvision.utils import save_image

from capsweep.config.cell import Cell, name_classes
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
COLUMNS, SCALE = 5, 3  # images per row and factor of enlargement in the picture of worst examples


def train_and_test(
    job: Job, here: Places, directory: CellDirectory, hooks: RunHooks, record_row: RecordRow
) -> dict[str, Any]:
    """Train and test a cell, and write the files of the cell.

    If the cell has a resume.ckpt, training continues from this checkpoint.

    Args:
        job: The job of the cell.
        here: The folders on this node.
        directory: The folder of the cell.
        hooks: Hooks with which the caller follows the epochs and ends the run early.
        record_row: Writes a row to metrics.jsonl or steps.jsonl.

    Returns:
        The content of result.json, without the keys for code, date and tracking. `training.run`
        adds these keys.

    Raises:
        ConfigError: If this node has no device for the cell, or if the network, loss or optimiser
            cannot be built with the settings of the cell.
        DataError: If the data cannot be read or verified, or if the data changed after resume.ckpt
            was written.
        NonFiniteLossError: If a loss or a metric is not finite.
        LeftEarlyError: If a hook or SIGTERM ended the run early.
        AccuracyNotReachedError: If `stop_accuracy` was not reached.
    """
    cell, started = job.cell, time.monotonic()
    device = devices.choose_device(cell.config)
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    torch.set_num_threads(cell.config["trainer"]["threads"])
    task, splits = build.prepare_training(cell, str(here.data), device)
    recorder = EpochRecorder(task, directory, hooks, record_row, splits.digests)
    first, resume = FirstActivations(), directory.resume_checkpoint
    fit_and_test(task, splits, [recorder, first], resume if resume.exists() else None)
    _record_methods(directory, task)
    callbacks.check_reached(recorder.accuracy, recorder.rows)
    # The epochs of earlier runs are included: the result is the time of an uninterrupted run.
    seconds = recorder.earlier_seconds + time.monotonic() - started
    given = (job.gpu or 1.0) if device.type == "cuda" else 0.0
    scores_MN, labels_M = task.collect_predictions()
    scores, labels = scores_MN.float().numpy(), labels_M.numpy()
    directory.write("predictions.npz", partial(np.savez_compressed, scores=scores, labels=labels))
    write_worst_examples(directory, scores, labels, splits["test"], name_classes(cell.config))
    directory.write("weights.ckpt", lambda file: torch.save(task.network.state_dict(), file))
    return _summarise_run(cell, task, splits, recorder) | {
        "seconds": {"fit": sum(row["seconds"] for row in recorder.rows), "total": seconds},
        "gpu_hours": given * seconds / 3600,
        "classes": examples.count_classes(scores, labels),
        "first_activations": first.quantiles,
    }


def _record_methods(directory: CellDirectory, task: CapsuleTask) -> None:
    """Add the implementations that computed the network to the provenance of the cell.

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
    """A callback that records quantiles of capsule activations in the very first training step.

    A network does not learn if nearly all of its capsules are inactive or saturated at the start.
    The authors of "Matrix capsules with EM routing" say about their choice of initial weights:
    "About half of the capsules should be active at the start". The callback reads the activations
    in the forward pass of the first step. Checkpoints contain the quantiles, so that a resumed run
    also has them.

    Attributes:
        quantiles: For each layer of capsules, its quantiles by name ("q0" to "q100").
        hooks: Removes the forward hooks that are registered during the first step.
    """

    def __init__(self) -> None:
        self.quantiles: dict[str, dict[str, float]] = {}
        self.hooks = ExitStack()

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
            self.hooks.enter_context(module.register_forward_hook(note))

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Remove the forward hooks."""
        self.hooks.close()

    def _note_activations(self, name: str, module: nn.Module, _: Any, output: Any) -> None:
        active = find_activations(module, output)
        if active is not None:
            self.quantiles[name] = measure_quantiles(active.detach().float())


def find_activations(module: nn.Module, output: Any) -> Tensor | None:
    """Compute the activations of a layer's capsules from the output of the layer.

    Args:
        module: The layer, or another module of the network.
        output: The output of the module.

    Returns:
        The activations. None for a module without capsules. Also None for a routing module, because
        the layer that contains the routing module has the same output.
    """
    if isinstance(module, PrimaryCapsules):
        return torch.linalg.vector_norm(output, dim=-1)
    if isinstance(output, Routed):
        return output.act_BJ if hasattr(module, "routing") else None
    return getattr(output, "act_BNI", None)  # layers of matrix capsules


def measure_quantiles(active: Tensor) -> dict[str, float]:
    """Return the quantiles of activations by name: q0, q10, q25, q50, q75, q90 and q100."""
    # np.quantile is used, because torch.quantile accepts at most 2^24 values.
    levels = np.quantile(active.cpu().numpy(), QUANTILES).tolist()
    return {f"q{100 * q:.0f}": value for q, value in zip(QUANTILES, levels, strict=True)}


def write_worst_examples(
    directory: CellDirectory,
    scores_MN: np.ndarray,
    labels: np.ndarray,
    test: EvaluatedSplit,
    names_N: Sequence[str],
) -> None:
    """Write at most 25 wrongly classified test examples to evals/worst-examples.npz and .png.

    With these files, the examples can be shown later without the data set and the network. If all
    test examples are classified correctly, no file is written.

    The examples are sorted by margin, the largest first. The .npz contains these arrays:

    - indices [K]: the index of each example in the test split.
    - labels [K, L]: the classes in its image.
    - predictions [K, L]: the L predicted classes.
    - margins [K]: the highest score of a class that is not in the image, minus the lowest score of
      a class in the image.
    - caption: the caption of the .png.

    In the .png, the intensities of each image are scaled to 0..1.

    Args:
        directory: The folder of the cell.
        scores_MN: The scores of the test examples, [M, N].
        labels: The labels of the test examples, [M] or [M, L].
        test: The test split, which has the images.
        names_N: The names of the classes, for the caption.
    """
    wrong, margins = examples.find_worst(scores_MN, labels)
    if not len(wrong):
        return
    indices_K = wrong[:WORST_COUNT]
    labels_KL = labels.reshape(len(labels), -1)[indices_K]
    predictions_KL = examples.predict_classes(scores_MN[indices_K], labels_KL.shape[1])
    pairs = zip(labels_KL.tolist(), predictions_KL.tolist(), strict=True)
    taken = ", ".join(" as ".join(_name_classes(each, names_N) for each in pair) for pair in pairs)
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
    colours = 3 if images_KCHW.shape[1] == 3 else 1  # else only the first channel is shown
    sheet = F.interpolate(images_KCHW[:, :colours], scale_factor=SCALE)
    write_sheet: Any = partial(
        save_image, sheet, format="png", nrow=COLUMNS, normalize=True, scale_each=True
    )
    directory.write(f"{EVALUATIONS}/{WORST}.npz", lambda to: np.savez_compressed(to, **file))
    directory.write(f"{EVALUATIONS}/{WORST}.png", write_sheet)


def _name_classes(classes: Sequence[int], names_N: Sequence[str]) -> str:
    return " ".join(names_N[number] for number in sorted(classes))
