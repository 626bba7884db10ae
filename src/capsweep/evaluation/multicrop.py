"""The 13-crop test: a network's scores of several crops of each test image, averaged.

Shape letters: M test examples, N classes.
"""

from typing import Any

import torch

from capsweep.config import code_identity
from capsweep.data.image_batches import CroppedImages
from capsweep.data.module import EVALUATION_BATCH
from capsweep.errors import UserError
from capsweep.evaluation.checkpoint import TrainedCell, split_range, verify_predictions
from capsweep.ledger.ledger import Predictions
from capsweep.statistics.examples import find_wrong

FILE = "multicrop.json"


def measure_crops(cell: TrainedCell, stored: Predictions) -> dict[str, Any]:
    """The errors of the crop in the middle and of all crops together, as plain data for `evals/`.

    Raises UserError naming the cell, also where the former is not what its test stored.
    """
    test = cell.test
    if not isinstance(test, CroppedImages):
        raise UserError(
            f"{cell.name}: its data set has no dataset.batches.crop: its images are shown whole"
        )
    retest = verify_predictions(cell, stored)
    means, crops = [], 0
    with torch.no_grad():
        for part in split_range(retest.examples, EVALUATION_BATCH):
            scores = [
                cell(crop.images_BCHW).scores_BN.double() for crop in test.iterate_crops(part)
            ]
            means.append(torch.stack(scores).mean(dim=0).cpu())
            crops = len(scores)
    wrong_M = find_wrong(torch.cat(means).numpy(), stored[1][: retest.examples])
    return {
        "crops": crops,
        "examples": retest.examples,
        "ties": retest.ties,
        "single_error": retest.wrong / retest.examples,
        "multicrop_error": float(wrong_M.mean()),
        "device": str(test.device),
        "code": code_identity.package(),
    }
