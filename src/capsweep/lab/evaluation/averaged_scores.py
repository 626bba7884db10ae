"""Scores averaged over the networks of an ensemble, or over the crops of each test image.

Shape letters: M test examples, N classes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from capsweep.config import code_identity
from capsweep.errors import UserError
from capsweep.ledger.ledger import Predictions
from capsweep.statistics.examples import find_wrong

if TYPE_CHECKING:
    from capsweep.lab.evaluation.checkpoint import TrainedCell

CROPS_FILE = "multicrop.json"


def find_wrong_together(members: Mapping[str, Predictions]) -> np.ndarray:
    """Which examples [M] are classified wrongly by the stored scores of all members added: the
    longest capsules on average. No model is run.

    members: by signature. Raises UserError naming the first two cells that were tested on different
    examples or classes.
    """
    (first, (first_MN, first_labels)), *others = members.items()
    for name, (scores_MN, labels) in others:
        if scores_MN.shape != first_MN.shape or not np.array_equal(labels, first_labels):
            raise UserError(
                f"cells {first} and {name} were tested on different examples or classes; only "
                "networks that saw the same test examples are an ensemble"
            )
    total_MN = np.stack([scores for scores, _ in members.values()]).sum(axis=0, dtype=np.float64)
    return find_wrong(total_MN, first_labels)


def measure_error(name: str, predictions: Predictions) -> float:
    """The test error of one member. Raises UserError for scores that are no predictions."""
    try:
        return float(find_wrong(*predictions).mean())
    except ValueError as error:
        raise UserError(f"{name}: predictions.npz: {error}; run the cell again") from error


def measure_crops(cell: "TrainedCell", stored: Predictions) -> dict[str, Any]:
    """Return the errors of the crop in the middle and of all crops together, as plain data for
    `evals/`.

    Raises UserError naming the cell, also where the former is not what its test stored.
    """
    import torch  # an ensemble does without

    from capsweep.data.image_batches import CroppedImages
    from capsweep.data.images import EVALUATION_BATCH
    from capsweep.lab.evaluation.checkpoint import split_range, verify_predictions

    test = cell.test
    if not isinstance(test, CroppedImages):
        raise UserError(
            f"{cell.name}: its data set has no dataset.batches.crop: its images are shown whole"
        )
    retest = verify_predictions(cell, stored)
    means, crops = [], 0
    with torch.no_grad():
        for part in split_range(retest.examples, EVALUATION_BATCH):
            scores = [cell.predict_batch(crop).double() for crop in test.iterate_crops(part)]
            means.append(torch.stack(scores).mean(dim=0))
            crops = len(scores)
    wrong_M = find_wrong(torch.cat(means).numpy(), stored[1][: retest.examples])
    return {
        "crops": crops,
        "examples": retest.examples,
        "ties": retest.ties,
        "single_error": retest.wrong / retest.examples,
        "multicrop_error": float(wrong_M.mean()),
        "device": str(test.device),
        "code": code_identity.hash_package(),
    }
