"""Figure 3 of "Dynamic Routing Between Capsules": test examples and their reconstructions.

Shape letters: K columns, L = 1 class shown in one image, C H W image.
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


def draw_cell(loader: CellLoader, name: str, options: Namespace) -> Iterator[Drawing]:
    """One figure."""
    cell, stored = loader.load_tested(name)
    columns = measure(cell, stored, options.correct, options.failures)
    arrays, caption = columns.collect_arrays(), describe_figure(columns)
    for key in ("labels", "predictions", "drawn_from", "reconstructions"):
        arrays[key] = arrays[key][:, 0]  # of the one class
    stem = f"reconstructions-correct{options.correct}-failures{options.failures}"
    picture = draw(columns, f"cell {name}: reconstructions", caption)
    yield Drawing(stem, arrays, picture, caption)


def measure(cell: TrainedCell, stored: Predictions, correct: int, failures: int) -> Columns:
    """The first so many examples that are classified correctly, drawn from the label's capsule;
    then the first failures, each drawn from its label's capsule and from the predicted one.

    Raises NotApplicableError for a network without a decoder, and for several classes in one image.
    """
    decoded.find_decoder(cell)
    if stored[1].ndim > 1:
        raise NotApplicableError(
            "its images show two classes, which are drawn one by one; ask for segmentation"
        )
    return decoded.draw_columns(cell, stored, correct, failures)


def draw(columns: Columns, title: str, caption: str) -> bytes:
    """A PNG: inputs above, reconstructions below, label, prediction and decoded class."""
    examples = columns.examples
    rows = pictures.scale_images(examples.images_KCHW), columns.drawn_KLCHW[:, 0]
    classes = zip(examples.labels_KL, examples.predictions_KL, columns.from_KL, strict=True)
    grid = Grid(
        tiles_RKHW3=np.stack([pictures.to_rgb(images) for images in rows]),
        beside=("input", "output"),
        above=[f"({label[0]}, {said[0]}, {drawn[0]})" for label, said, drawn in classes],
        title=title,
        caption=caption,
    )
    return pictures.draw_grid(grid)


def describe_figure(columns: Columns) -> str:
    """The caption: what the columns are."""
    return (
        "(l, p, r): label, prediction, and the class whose capsule is drawn, all others masked; "
        f"{columns.describe_examples()}; each failure is drawn from its label's capsule, then from "
        f"the predicted one; {pictures.SCALED}"
    )
