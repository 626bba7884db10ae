"""The 13-crop test: a network's scores of several crops of each test image, averaged.

Shape letters: M test examples, N classes.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from capsweep.config import code_identity
from capsweep.data.image_batches import CroppedImages
from capsweep.data.module import EVALUATION_BATCH
from capsweep.errors import UserError
from capsweep.evaluation.stored import as_stored
from capsweep.evaluation.trained import Trained, batches
from capsweep.statistics.examples import find_wrong

FILE = "multicrop.json"


@dataclass(frozen=True)
class Answer:
    """Errors on `examples` test images: of the crop in the middle, and of all crops together.

    ties: see `trained.Clean`.
    """

    crops: int
    examples: int
    ties: int
    single_error: float
    multicrop_error: float

    def as_json(self, device: torch.device) -> dict[str, Any]:
        """Everything, for `evals/`."""
        return {**asdict(self), "device": str(device), "code": code_identity.package()}


def measure(trained: Trained, stored: tuple[np.ndarray, np.ndarray]) -> Answer:
    """Both errors, after proof that the single one is what the cell's stored scores [M, N] and
    labels [M] say. Raises UserError naming the cell.
    """
    test = trained.test
    if not isinstance(test, CroppedImages):
        raise UserError(
            f"{trained.name}: its data set has no dataset.batches.crop: its images are shown whole"
        )
    clean = as_stored(trained, stored)
    sums, crops = [], 0
    with torch.no_grad():
        for part in batches(clean.examples, EVALUATION_BATCH):
            scores = [
                trained(crop.images_BCHW).scores_BN.double() for crop in test.iterate_crops(part)
            ]
            sums.append(torch.stack(scores).mean(dim=0).cpu())
            crops = len(scores)
    together_M = find_wrong(torch.cat(sums).numpy(), stored[1][: clean.examples])
    error = float(together_M.mean())
    return Answer(crops, clean.examples, clean.ties, clean.error, error)
