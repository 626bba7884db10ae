"""Figure 3 of "Dynamic Routing Between Capsules": test examples and their reconstructions.

Shape letters: K columns, L = 1 class shown in one image, C H W image.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from capsweep.errors import NotApplicableError
from capsweep.evaluation import picture_grid
from capsweep.evaluation.figures import Drawing, whole_number
from capsweep.evaluation.picture_grid import Grid

if TYPE_CHECKING:
    from capsweep.evaluation.checkpoint import CellLoader, TrainedCell
    from capsweep.evaluation.decoded import Columns
    from capsweep.ledger.ledger import Predictions


def add_options(command: ArgumentParser) -> None:
    """Add the options of the command."""
    count = whole_number(0)
    command.add_argument("--correct", type=count, default=8, help="so many correct ones (8)")
    command.add_argument("--failures", type=count, default=4, help="so many wrong ones (4)")


def draw_cell(loader: "CellLoader", name: str, options: Namespace) -> Iterator[Drawing]:
    """One figure."""
    cell, stored = loader.load_tested(name)
    columns = measure(cell, stored, options.correct, options.failures)
    yield Drawing(
        stem=f"reconstructions-correct{options.correct}-failures{options.failures}",
        arrays={
            "places": columns.examples.places_K,
            "images": columns.examples.images_KCHW,
            "labels": columns.examples.labels_KL[:, 0],
            "predictions": columns.examples.predictions_KL[:, 0],
            "drawn_from": columns.from_KL[:, 0],
            "reconstructions": columns.drawn_KLCHW[:, 0],
        },
        picture=draw(columns, f"cell {name}: reconstructions"),
        caption=describe_figure(columns),
    )


def measure(cell: "TrainedCell", stored: "Predictions", correct: int, failures: int) -> "Columns":
    """The first so many examples that are classified correctly, drawn from the label's capsule;
    then the first failures, each drawn from its label's capsule and from the predicted one.

    Raises NotApplicableError for a network without a decoder, and for several classes in one image.
    """
    from capsweep.evaluation import decoded

    decoded.find_decoder(cell)
    if stored[1].ndim > 1:
        raise NotApplicableError(
            "its images show two classes, which are drawn one by one; ask for segmentation"
        )
    examples = decoded.ask_network(cell, stored, decoded.choose_places(stored, correct, failures))
    index = np.concatenate([examples.correct, np.repeat(examples.failures, 2)])
    from_KL = examples.labels_KL[index]
    from_KL[len(examples.correct) + 1 :: 2] = examples.predictions_KL[examples.failures]
    return decoded.draw_columns(cell, stored, examples, index, from_KL)


def draw(columns: "Columns", title: str) -> bytes:
    """A PNG: inputs above, reconstructions below, label, prediction and decoded class."""
    images, _ = picture_grid.scale_images(columns.examples.images_KCHW)
    rows = images, columns.drawn_KLCHW[:, 0]
    classes = zip(
        columns.examples.labels_KL, columns.examples.predictions_KL, columns.from_KL, strict=True
    )
    grid = Grid(
        tiles_RKHW3=np.stack([picture_grid.to_rgb(images) for images in rows]),
        beside=("input", "output"),
        above=[f"({label[0]}, {said[0]}, {drawn[0]})" for label, said, drawn in classes],
        title=title,
        caption=describe_figure(columns),
        groups=columns.failures,
    )
    return picture_grid.draw_grid(grid)


def describe_figure(columns: "Columns") -> str:
    """The caption: what the columns are."""
    correct = len(columns.examples.places_K) - 2 * len(columns.failures)
    _, scaled = picture_grid.scale_images(columns.examples.images_KCHW)
    texts = [
        "(l, p, r): label, prediction, and the class whose capsule is drawn, all others masked",
        columns.describe_examples(correct),
        "each failure is drawn from its label's capsule, then from the predicted one",
        columns.describe_places(),
        scaled,
    ]
    return "; ".join(filter(None, texts))
