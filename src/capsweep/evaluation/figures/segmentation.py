"""Figure 5 of "Dynamic Routing Between Capsules": two overlapping digits, drawn one by one.

Shape letters: K columns, L = 2 digits of an image, N classes, C H W image.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from capsweep.errors import NotApplicableError
from capsweep.evaluation import picture_grid
from capsweep.evaluation.figures import Drawing, whole_number
from capsweep.evaluation.picture_grid import Grid

if TYPE_CHECKING:
    from capsweep.evaluation.checkpoint import CellLoader, TrainedCell
    from capsweep.evaluation.decoded import Columns, Examples
    from capsweep.ledger.ledger import Predictions

DIGITS = 2


@dataclass(frozen=True)
class Segmented:
    """starred_K: drawn with a class that is neither label nor prediction. overlap_KL: intersection
    over union of the pixels drawn and true; NaN where another class than the label's was drawn.
    """

    columns: "Columns"
    starred_K: np.ndarray
    overlap_KL: np.ndarray


def add_options(command: ArgumentParser) -> None:
    """Add the options of the command."""
    for name, usual, text in (
        ("--correct", 6, "so many correct ones (6)"),
        ("--starred", 2, "so many drawn with a class that is not there (2)"),
        ("--failures", 2, "so many wrong ones (2)"),
    ):
        command.add_argument(name, type=whole_number(0), default=usual, help=text)


def draw_cell(loader: "CellLoader", name: str, options: Namespace) -> Iterator[Drawing]:
    """One figure."""
    correct, starred, failures = options.correct, options.starred, options.failures
    cell, stored = loader.load_tested(name)
    segmented = measure(cell, stored, correct, starred, failures)
    columns, examples = segmented.columns, segmented.columns.examples
    assert examples.digits_KLCHW is not None, "images of two digits have targets"
    yield Drawing(
        stem=f"segmentation-correct{correct}-starred{starred}-failures{failures}",
        arrays={
            "places": examples.places_K,
            "images": examples.images_KCHW,
            "digits": examples.digits_KLCHW,
            "labels": examples.labels_KL,
            "predictions": examples.predictions_KL,
            "drawn_from": columns.from_KL,
            "starred": segmented.starred_K,
            "overlap": segmented.overlap_KL,
            "reconstructions": columns.drawn_KLCHW,
        },
        picture=draw(segmented, f"cell {name}: segmentation"),
        caption=describe_figure(segmented),
    )


def measure(
    cell: "TrainedCell", stored: "Predictions", correct: int, starred: int, failures: int
) -> Segmented:
    """Columns of correctly classified examples, drawn from their labels; of the next ones, with a
    class that is not there; of failures, each drawn from its labels and from the predictions.

    Raises NotApplicableError for a network without a decoder, and for one class in one image.
    """
    import torch

    from capsweep.evaluation import decoded
    from capsweep.training.metrics import measure_overlap

    decoded.find_decoder(cell)
    if stored[1].ndim == 1 or stored[1].shape[1] != DIGITS:
        raise NotApplicableError(
            "its images do not show two classes; segmentation needs those that do "
            "(dataset=multimnist)"
        )
    places = decoded.choose_places(stored, correct + starred, failures)
    examples = decoded.ask_network(cell, stored, places)
    plain, stars = examples.correct[:correct], examples.correct[correct:]
    index = np.concatenate([plain, stars, np.repeat(examples.failures, 2)])
    from_KL = examples.labels_KL[index]
    first_star, first_failure = len(plain), len(examples.correct)
    from_KL[first_star:first_failure, 1] = find_absent(examples)[stars]
    from_KL[first_failure + 1 :: 2] = examples.predictions_KL[examples.failures]
    columns = decoded.draw_columns(cell, stored, examples, index, from_KL)
    drawn = torch.as_tensor(columns.drawn_KLCHW)
    true = torch.as_tensor(columns.examples.digits_KLCHW)
    overlap_KL = measure_overlap(drawn, true).numpy()
    place_K = np.arange(len(index))
    return Segmented(
        columns=columns,
        starred_K=(place_K >= first_star) & (place_K < first_failure),
        overlap_KL=np.where(from_KL == columns.examples.labels_KL, overlap_KL, np.nan),
    )


def find_absent(examples: "Examples") -> np.ndarray:
    """[K]: the most active class that is neither a label nor a prediction."""
    scores_KN = examples.scores_KN.astype(np.float64)  # a copy
    for classes_KL in (examples.labels_KL, examples.predictions_KL):
        np.put_along_axis(scores_KN, classes_KL, -np.inf, axis=1)
    return scores_KN.argmax(axis=1)


def overlay_digits(drawn_KLCHW: np.ndarray) -> np.ndarray:
    """[K, H, W, 3]: the first digit in red, the second in green, pixels of both in yellow."""
    intensity_KLHW = drawn_KLCHW.max(axis=2).clip(0, 1)
    red_KHW, green_KHW = intensity_KLHW[:, 0], intensity_KLHW[:, 1]
    return np.stack([red_KHW, green_KHW, np.zeros_like(red_KHW)], axis=-1)


def draw(segmented: Segmented, title: str) -> bytes:
    """A PNG: inputs above; below, the two drawn digits in red and green."""
    columns = segmented.columns
    images, _ = picture_grid.scale_images(columns.examples.images_KCHW)
    first_star = np.flatnonzero(segmented.starred_K)[:1].tolist()
    above = []
    for k, (drawn, labels) in enumerate(
        zip(columns.from_KL, columns.examples.labels_KL, strict=True)
    ):
        star = "*" if segmented.starred_K[k] else ""
        predicted = "P:" if k - 1 in columns.failures else ""
        above.append(f"{star}R:{predicted}({drawn[0]},{drawn[1]})\nL:({labels[0]},{labels[1]})")
    grid = Grid(
        tiles_RKHW3=np.stack([picture_grid.to_rgb(images), overlay_digits(columns.drawn_KLCHW)]),
        beside=("input", "output"),
        above=above,
        title=title,
        caption=describe_figure(segmented),
        groups=[*first_star, *columns.failures],
    )
    return picture_grid.draw_grid(grid)


def describe_figure(segmented: Segmented) -> str:
    """The caption: what the columns are."""
    columns, starred = segmented.columns, int(segmented.starred_K.sum())
    correct = len(columns.examples.places_K) - starred - 2 * len(columns.failures)
    overlap = segmented.overlap_KL[~np.isnan(segmented.overlap_KL)]
    texts = [
        "L: labels; R: the classes whose capsules are drawn one by one, all others masked, the "
        "first in red, the second in green, pixels of both in yellow",
        f"{columns.describe_examples(correct)} (correct: the two most active classes are the "
        "labels)",
        f"*: the next {starred} correct ones, the second label replaced by the most active "
        "class that is neither label nor prediction",
        "each failure is drawn from its labels, then from the predictions (P)",
    ]
    if overlap.size:
        texts.append(
            "mean overlap with the true digits (intersection over union of non-zero pixels): "
            f"{overlap.mean():.2f} of the labels drawn here"
        )
    return "; ".join([*texts, columns.describe_places()])
