"""Figure 5 of "Dynamic Routing Between Capsules": two overlapping digits, drawn one by one.

Shape letters: K columns, L = 2 digits of an image, N classes, C H W image.
"""

from argparse import Namespace
from collections.abc import Iterator

import numpy as np

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation import decoded
from capsweep.lab.evaluation.checkpoint import CellLoader, TrainedCell
from capsweep.lab.evaluation.decoded import Columns
from capsweep.lab.evaluation.figures import Drawing
from capsweep.ledger.ledger import Predictions
from capsweep.report import pictures
from capsweep.report.pictures import Grid

DIGITS = 2


def draw_cell(loader: CellLoader, name: str, options: Namespace) -> Iterator[Drawing]:
    """One figure."""
    cell, stored = loader.load_tested(name)
    columns = measure(cell, stored, options.correct, options.failures)
    arrays, caption = columns.collect_arrays(), describe_figure(columns)
    assert columns.examples.digits_KLCHW is not None, "images of two digits have targets"
    arrays["digits"] = columns.examples.digits_KLCHW
    stem = f"segmentation-correct{options.correct}-failures{options.failures}"
    picture = draw(columns, f"cell {name}: segmentation", caption)
    yield Drawing(stem, arrays, picture, caption)


def measure(cell: TrainedCell, stored: Predictions, correct: int, failures: int) -> Columns:
    """Columns of correctly classified examples, drawn from their labels; then of failures, each
    drawn from its labels and from the predictions.

    Raises NotApplicableError for a network without a decoder, and for one class in one image.
    """
    decoded.find_decoder(cell)
    if stored[1].ndim == 1 or stored[1].shape[1] != DIGITS:
        raise NotApplicableError(
            "its images do not show two classes; segmentation needs those that do "
            "(dataset=multimnist)"
        )
    return decoded.draw_columns(cell, stored, correct, failures)


def overlay_digits(drawn_KLCHW: np.ndarray) -> np.ndarray:
    """[K, H, W, 3]: the first digit in red, the second in green, pixels of both in yellow."""
    intensity_KLHW = drawn_KLCHW.max(axis=2).clip(0, 1)
    red_KHW, green_KHW = intensity_KLHW[:, 0], intensity_KLHW[:, 1]
    return np.stack([red_KHW, green_KHW, np.zeros_like(red_KHW)], axis=-1)


def draw(columns: Columns, title: str, caption: str) -> bytes:
    """A PNG: inputs above; below, the two drawn digits in red and green."""
    images = pictures.scale_images(columns.examples.images_KCHW)
    classes = zip(columns.from_KL, columns.examples.labels_KL, strict=True)
    above = []
    for k, (drawn, labels) in enumerate(classes):
        predicted = "P:" if k - 1 in columns.failures else ""
        above.append(f"R:{predicted}({drawn[0]},{drawn[1]})\nL:({labels[0]},{labels[1]})")
    grid = Grid(
        tiles_RKHW3=np.stack([pictures.to_rgb(images), overlay_digits(columns.drawn_KLCHW)]),
        beside=("input", "output"),
        above=above,
        title=title,
        caption=caption,
    )
    return pictures.draw_grid(grid)


def describe_figure(columns: Columns) -> str:
    """The caption: what the columns are."""
    return (
        "L: labels; R: the classes whose capsules are drawn one by one, all others masked, the "
        f"first in red, the second in green, pixels of both in yellow; "
        f"{columns.describe_examples()} (correct: the two most active classes are the labels); "
        "each failure is drawn from its labels, then from the predictions (P)"
    )
