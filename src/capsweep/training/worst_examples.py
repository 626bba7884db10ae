"""The test examples of which a wrong class was the surest, with their pictures.

Written when the cell ends: later neither data nor network are needed to show them.

Shape letters: M test examples, N classes, L classes shown in one image, K worst, C H W image.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from capsweep import torchvision_cure as torchvision_cure

# isort: split
from torchvision.utils import save_image

from capsweep.data.batches import EvaluatedSplit
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.ledger.ledger import EVALUATIONS
from capsweep.statistics import examples
from capsweep.tracking.content import WORST, join_classes

COUNT = 25
COLUMNS, SCALE = 5, 3  # of the sheet: pictures in a row, pixels of one of theirs


def write_worst_examples(
    directory: CellDirectory, scores_MN: np.ndarray, labels: np.ndarray, test: EvaluatedSplit
) -> None:
    """Write evals/worst-examples.npz and .png of at most 25 wrongly classified test examples.

    In the .npz: indices [K] among the test examples, labels and predictions [K, L], margins [K] by
    which a wrong class won, the largest first, scores [K, N], images uint8 [K, C, H, W]; and the
    caption of the picture.
    """
    wrong, margins = examples.find_worst(scores_MN, labels, len(labels))
    indices_K = wrong[:COUNT]
    labels_KL = labels.reshape(len(labels), -1)[indices_K]
    predictions_KL = examples.predict_classes(scores_MN[indices_K], labels_KL.shape[1])
    images_KCHW = _present_images(test, indices_K)
    file: dict[str, Any] = {
        "indices": indices_K,
        "labels": labels_KL,
        "predictions": predictions_KL,
        "margins": margins[:COUNT],
        "scores": scores_MN[indices_K],
        "images": images_KCHW.numpy(),
        "caption": np.array(_make_caption(labels_KL, predictions_KL, len(wrong), scores_MN)),
    }
    name = f"{EVALUATIONS}/{WORST}"
    directory.write(f"{name}.npz", lambda target: np.savez_compressed(target, **file))
    if len(indices_K):
        directory.write(f"{name}.png", lambda target: _write_sheet(target, images_KCHW))


def _make_caption(
    labels_KL: np.ndarray, predictions_KL: np.ndarray, wrong: int, scores_MN: np.ndarray
) -> str:
    """What the sheet shows."""
    parts = ["no test example is classified wrongly"]
    if wrong:
        pairs = zip(labels_KL, predictions_KL, strict=True)
        taken = ", ".join(
            f"{join_classes(label)} as {join_classes(other)}" for label, other in pairs
        )
        parts = [
            f"{len(labels_KL)} of {wrong} wrongly classified test examples, those of which a wrong "
            "class was the surest: the margin of its score over the label's falls from left to "
            "right and from row to row",
            f"each label and what it was taken for: {taken}",
        ]
    unknown = int((~np.isfinite(scores_MN)).any(axis=1).sum())
    if unknown:
        parts.append(f"left out: {unknown} examples with scores that are no finite numbers")
    return "; ".join(parts)


def _present_images(test: EvaluatedSplit, indices_K: np.ndarray) -> Tensor:
    """uint8 [K, C, H, W], as the network was shown them; other ranges than 0..1 are stretched."""
    none = test.evaluation_batch(slice(0, 1)).images_BCHW[:0]
    images = [test.evaluation_batch(slice(int(i), int(i) + 1)).images_BCHW for i in indices_K]
    images_KCHW = torch.cat([none, *images]).float()
    low_K111, high_K111 = (
        f(images_KCHW, dim=(1, 2, 3), keepdim=True) for f in (torch.amin, torch.amax)
    )
    is_outside = (low_K111 < 0) | (high_K111 > 1)
    low_K111 = torch.where(is_outside, low_K111, 0.0)
    span_K111 = (torch.where(is_outside, high_K111, 1.0) - low_K111).clamp(min=1e-6)
    return ((images_KCHW - low_K111) / span_K111 * 255).round().byte().cpu()


def _write_sheet(target: Any, images_KCHW: Tensor) -> None:
    """All pictures in one PNG; of channels that are no colours the first."""
    colours = 3 if images_KCHW.shape[1] == 3 else 1
    scaled = F.interpolate(images_KCHW[:, :colours] / 255, scale_factor=SCALE)
    save_image(scaled, target, format="png", nrow=COLUMNS)
