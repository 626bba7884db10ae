"""The test examples of which a wrong class was the surest, with their pictures.

Written when the cell ends: later neither data nor network are needed to show them.

Shape letters: M test examples, N classes, L classes shown in one image, K worst, C H W image.
"""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from capsweep.data.batches import EvaluatedSplit
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.ledger.ledger import EVALUATIONS
from capsweep.statistics import examples
from capsweep.tracking.tables import WORST, names_of

COUNT = 25
COLUMNS, TILE, TEXT = 5, 84, 14  # of the sheet: pictures in a row, pixels of one, of its caption


def write_worst_examples(
    directory: CellDirectory, scores_MN: np.ndarray, labels: np.ndarray, test: EvaluatedSplit
) -> None:
    """Write evals/worst-examples.npz and .png of at most 25 wrongly classified test examples.

    In the .npz: indices [K] among the test examples, labels and predictions [K, L], margins [K] by
    which a wrong class won, the largest first, scores [K, N], images uint8 [K, C, H, W]; and the
    caption of the picture.
    """
    wrong, margins = examples.find_worst(scores_MN, labels, len(labels))
    indices_K, margins_K = wrong[:COUNT], margins[:COUNT]
    unknown = int((~np.isfinite(scores_MN)).any(axis=1).sum())
    labels_KL = labels.reshape(len(labels), -1)[indices_K]
    file: dict[str, Any] = {
        "indices": indices_K,
        "labels": labels_KL,
        "predictions": examples.predict_classes(scores_MN[indices_K], labels_KL.shape[1]),
        "margins": margins_K,
        "scores": scores_MN[indices_K],
        "images": _present_images(test, indices_K),
        "caption": np.array(_make_caption(len(indices_K), len(wrong), unknown)),
    }
    name = f"{EVALUATIONS}/{WORST}"
    directory.write(f"{name}.npz", lambda target: np.savez_compressed(target, **file))
    if len(indices_K):
        directory.write(f"{name}.png", lambda target: target.write(_draw_sheet(file)))


def _make_caption(shown: int, wrong: int, unknown: int) -> str:
    """What the sheet shows. unknown: examples whose scores are no finite numbers."""
    told = ["no test example is classified wrongly"]
    if shown:
        told = [
            f"{shown} of {wrong} wrongly classified test examples, those of which a wrong class "
            "was the surest: the margin of its score over the label's is the largest, and falls "
            "from left to right and from row to row",
            "below each: its label as what it was taken for",
        ]
    if unknown:
        told.append(f"left out: {unknown} examples with scores that are no finite numbers")
    return "; ".join(told)


def _present_images(test: EvaluatedSplit, indices_K: np.ndarray) -> np.ndarray:
    """uint8 [K, C, H, W], as the network was shown them; other ranges than 0..1 are stretched."""
    shown = [test.evaluated(slice(int(i), int(i) + 1)).images_BCHW for i in indices_K]
    if not shown:
        return np.zeros((0, *test.evaluated(slice(0, 1)).images_BCHW.shape[1:]), np.uint8)
    images_KCHW = torch.cat(shown).float()
    low, high = images_KCHW.amin(dim=(1, 2, 3)), images_KCHW.amax(dim=(1, 2, 3))
    outside_K = (low < 0) | (high > 1)
    low, high = torch.where(outside_K, low, 0.0), torch.where(outside_K, high, 1.0)
    span = (high - low).clamp(min=1e-6)[:, None, None, None]
    return ((images_KCHW - low[:, None, None, None]) / span * 255).round().byte().cpu().numpy()


def _draw_sheet(file: Mapping[str, np.ndarray]) -> bytes:
    """All pictures in one PNG; below each its label and what it was taken for."""
    rows = -(-len(file["indices"]) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * TILE, rows * (TILE + TEXT)), "white")
    draw = ImageDraw.Draw(sheet)
    for k, image_CHW in enumerate(file["images"]):
        left, top = k % COLUMNS * TILE, k // COLUMNS * (TILE + TEXT)
        sheet.paste(_draw_tile(image_CHW), (left, top))
        label, prediction = (names_of(file[key][k]) for key in ("labels", "predictions"))
        draw.text((left + 2, top + TILE), f"{label} as {prediction}", fill="black")
    png = io.BytesIO()
    sheet.save(png, "PNG", compress_level=1)
    return png.getvalue()


def _draw_tile(image_CHW: np.ndarray) -> Image.Image:
    """One picture; of channels that are no colours the first."""
    channels = image_CHW.transpose(1, 2, 0)
    image = Image.fromarray(channels if channels.shape[2] == 3 else channels[:, :, 0])
    return image.resize((TILE - 2, TILE - 2), Image.Resampling.NEAREST)
