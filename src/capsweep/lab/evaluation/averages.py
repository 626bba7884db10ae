"""Scores averaged over the networks of an ensemble, or over crops of each test image.

Shape letters: M test examples, N classes.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from statistics import fmean

import numpy as np
import torch

from capsweep.data.image_batches import CroppedImages
from capsweep.data.images import EVALUATION_BATCH
from capsweep.errors import UserError
from capsweep.lab.evaluation import sweep_cells
from capsweep.lab.evaluation.checkpoint import TrainedCell, split_range
from capsweep.lab.evaluation.sweep_cells import Content, SweepCells
from capsweep.ledger.ledger import Predictions, load_predictions
from capsweep.ledger.records import Record
from capsweep.report.grid import MISSING
from capsweep.report.trained import find_published, format_published, note_published
from capsweep.statistics.examples import find_wrong, wilson_interval

ENSEMBLE_NOTE = (
    "single: mean test error of the members. ensemble: test error if the members' scores of each "
    "example are added, with a 95 % interval over test examples (Wilson), which does not include "
    "the variation between trainings."
)
CROPS_FILE = "multicrop.json"
CROPS_NOTE = (
    "single crop: test error of the central crop, as each cell stored it. 13 crops: test error of "
    "the average scores of the central crop and of the 12 crops that are 1, 2 and 3 pixels away "
    "along both diagonals."
)


def publish_ensemble(cells: SweepCells, parsed: Namespace) -> None:
    """Publish a table of ensemble errors.

    In each row, the networks of all finished seeds form an ensemble, if there are at least two.

    Raises:
        UserError: No cell is finished, the stored predictions of a cell are not valid, or two
            cells of a row were tested on different examples or classes.
    """
    lines, published = [], []
    for group, names in cells.evaluate_points(lambda point: point.cell.signature):
        members = {name: load_predictions(cells.ledger, name) for name in names}
        single = [measure_error(*member) for member in members.items()]
        together = MISSING
        if len(members) > 1:
            wrong_M = find_ensemble_errors(members)
            together = format_error(int(wrong_M.sum()), len(wrong_M))
        numbers = find_published(cells.table.sweep, [group.point], members=len(single))
        published += numbers
        mean = f"{100 * fmean(single):.2f} %" if single else MISSING
        others = format_published(cells.table.sweep, numbers)
        lines.append((group, [f"{len(names)}/{len(group.cells)}", mean, together, others]))
    notes = [ENSEMBLE_NOTE, *note_published(cells.table.sweep, published)]
    header = ["members", "single", "ensemble", "published"]
    cells.publish_table("ensemble", "ensembles", header, lines, notes)


def format_error(wrong: int, total: int) -> str:
    """Write an error with Wilson's 95 % interval, such as `0.83 % (3 of 360) [0.28, 2.43]`."""
    low, high = wilson_interval(wrong, total)
    return f"{100 * wrong / total:.2f} % ({wrong} of {total}) [{100 * low:.2f}, {100 * high:.2f}]"


def find_ensemble_errors(members: Mapping[str, Predictions]) -> np.ndarray:
    """Find the test examples that an ensemble classifies wrongly.

    For each example, the stored scores of all members are added. So the ensemble ranks classes by
    their average score. No network is run.

    Args:
        members: Stored scores [M, N] and labels of each member, by signature of the cell.

    Returns:
        A boolean array [M].

    Raises:
        UserError: Two cells were tested on different examples or classes; the error names them.
    """
    (first, (first_MN, first_labels)), *others = members.items()
    for name, (scores_MN, labels) in others:
        if scores_MN.shape != first_MN.shape or not np.array_equal(labels, first_labels):
            raise UserError(
                f"cells {first} and {name} were tested on different examples or classes; an "
                "ensemble needs networks with the same test examples"
            )
    total_MN = np.stack([scores for scores, _ in members.values()]).sum(axis=0, dtype=np.float64)
    return find_wrong(total_MN, first_labels)


def measure_error(name: str, predictions: Predictions) -> float:
    """Return the test error of one network, computed from its stored predictions.

    Args:
        name: Signature of the cell, for the error message.
        predictions: Stored scores and labels.

    Raises:
        UserError: The stored predictions are not valid; the error names the cell.
    """
    try:
        return float(find_wrong(*predictions).mean())
    except ValueError as error:
        raise UserError(f"{name}: predictions.npz: {error}; run the cell again") from error


def publish_multicrop(cells: SweepCells, parsed: Namespace) -> None:
    """Test every finished cell on 13 crops of each image, and publish a table of the errors.

    The errors of each cell are stored in the folder `evals/` of the cell.

    Raises:
        UserError: No cell is finished, the data set has no crops, or a network does not reproduce
            its stored predictions.
    """
    lines, loader = [], cells.make_loader(parsed.device)
    for group, of_cells in cells.evaluate_networks(loader, measure_crops, (CROPS_FILE, Record)):
        contents = [content for (content,) in of_cells]
        errors = [[c[f"{key}_error"] for c in contents] for key in ("single", "multicrop")]
        lines.append((group, sweep_cells.describe_seeds(group, contents, errors)))
    header = [*sweep_cells.SEEDS_HEADER, "single crop", "13 crops"]
    cells.publish_table(
        "multicrop", "13-crop test", header, lines, [CROPS_NOTE, sweep_cells.SEEDS_NOTE]
    )


def measure_crops(cell: TrainedCell) -> Iterator[tuple[str, Content]]:
    """Measure the test errors with the central crop and with all crops.

    With all crops, the scores of an example are averaged over its crops.

    Yields:
        The name and the content of a file for the `evals/` of the cell.

    Raises:
        UserError: The data set has no crops, or the network does not reproduce the stored
            predictions of the central crop; the error names the cell.
    """
    test = cell.test
    if not isinstance(test, CroppedImages):
        raise UserError(
            f"{cell.name}: multicrop needs a data set with dataset.batches.crop; this one has none"
        )
    retest = cell.verify()
    means, crops = [], 0
    for part in split_range(retest.examples, EVALUATION_BATCH):
        scores = [cell.predict_batch(crop).double() for crop in test.iterate_crops(part)]
        means.append(torch.stack(scores).mean(dim=0))
        crops = len(scores)
    wrong_M = find_wrong(torch.cat(means).numpy(), cell.stored[1])
    yield (
        CROPS_FILE,
        {
            "crops": crops,
            "examples": retest.examples,
            "ties": retest.ties,
            "single_error": retest.wrong / retest.examples,
            "multicrop_error": float(wrong_M.mean()),
        },
    )
