"""Figure 5 of "Dynamic Routing Between Capsules": two overlapping digits, drawn one by one.

Shape letters: K columns, L = 2 digits of an image, C H W image.
"""

from argparse import Namespace
from collections.abc import Iterator

import numpy as np

from capsweep.lab.evaluation import decoded
from capsweep.lab.evaluation.checkpoint import CellLoader
from capsweep.lab.evaluation.figures import Drawing


def draw_cell(loader: CellLoader, name: str, options: Namespace) -> Iterator[Drawing]:
    """Yield one figure: correct examples, drawn from their labels; then failures, each drawn from
    its labels and from the predictions.
    """
    columns = decoded.draw_columns(*loader.load_tested(name), options, classes=2)
    classes = zip(columns.from_KL, columns.examples.labels_KL, strict=True)
    above = []
    for k, (drawn, labels) in enumerate(classes):
        predicted = "P:" if k - 1 in columns.failures else ""
        above.append(f"R:{predicted}({drawn[0]},{drawn[1]})\nL:({labels[0]},{labels[1]})")
    caption = (
        "L: labels; R: the classes whose capsules are drawn one by one, all others masked, the "
        f"first in red, the second in green, pixels of both in yellow; "
        f"{columns.describe_examples()} (correct: the two most active classes are the labels); "
        "each failure is drawn from its labels, then from the predictions (P)"
    )
    overlaid_KHW3 = overlay_digits(columns.drawn_KLCHW)
    yield columns.make_drawing(("segmentation", name), options, overlaid_KHW3, above, caption)


def overlay_digits(drawn_KLCHW: np.ndarray) -> np.ndarray:
    """Return [K, H, W, 3]: the first digit in red, the second in green, common pixels in yellow."""
    intensity_KLHW = drawn_KLCHW.max(axis=2).clip(0, 1)
    red_KHW, green_KHW = intensity_KLHW[:, 0], intensity_KLHW[:, 1]
    return np.stack([red_KHW, green_KHW, np.zeros_like(red_KHW)], axis=-1)
