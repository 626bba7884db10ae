"""Figure 5 of "Dynamic Routing Between Capsules": two overlapping digits, drawn one by one.

Shape letters: K columns, L = 2 digits of an image, N classes, C H W image.
"""

from dataclasses import dataclass

import numpy as np
import torch

from capsweep.errors import NotApplicableError
from capsweep.evaluation import decoded
from capsweep.evaluation.decoded import Columns, Examples, Stored
from capsweep.evaluation.trained import Trained
from capsweep.training.metrics import measure_overlap

DIGITS = 2


@dataclass(frozen=True)
class Segmented:
    """starred_K: drawn with a class that is neither label nor prediction. digits_KLCHW: the true
    digits alone. overlap_KL: intersection over union of the pixels drawn and true; NaN where
    another class than the label's was drawn.
    """

    columns: Columns
    starred_K: np.ndarray
    digits_KLCHW: np.ndarray
    overlap_KL: np.ndarray


def of(trained: Trained, stored: Stored, right: int, starred: int, failed: int) -> Segmented:
    """Columns of correctly classified examples, drawn from their labels; of the next ones, with a
    class that is not there; of failures, each drawn from its labels and from the predictions.

    Raises NotApplicableError for a network without a decoder, and for one class in one image.
    """
    decoded.decoder_of(trained)
    if stored[1].ndim == 1 or stored[1].shape[1] != DIGITS:
        raise NotApplicableError(
            "its images do not show two classes; segmentation needs those that do "
            "(dataset=multimnist)"
        )
    places = decoded.first(stored, right=right + starred, failed=failed)
    examples = decoded.ask(trained, stored, places)
    assert examples.digits_KLCHW is not None, "an image of several classes has a target for each"
    plain, stars = examples.right[:right], examples.right[right:]
    index = np.concatenate([plain, stars, np.repeat(examples.failed, 2)])
    from_KL = examples.labels_KL[index]
    first_star, first_failure = len(plain), len(examples.right)
    from_KL[first_star:first_failure, 1] = absent(examples)[stars]
    from_KL[first_failure + 1 :: 2] = examples.predictions_KL[examples.failed]
    columns = decoded.columns(trained, examples, index, from_KL)
    digits_KLCHW = examples.digits_KLCHW[index].cpu()
    overlap_KL = measure_overlap(torch.as_tensor(columns.drawn_KLCHW), digits_KLCHW).numpy()
    place_K = np.arange(len(index))
    return Segmented(
        columns=columns,
        starred_K=(place_K >= first_star) & (place_K < first_failure),
        digits_KLCHW=digits_KLCHW.numpy(),
        overlap_KL=np.where(from_KL == columns.labels_KL, overlap_KL, np.nan),
    )


def absent(examples: Examples) -> np.ndarray:
    """[K]: the most active class that is neither a label nor a prediction."""
    scores_KN = examples.scores_KN.astype(np.float64)  # a copy
    for classes_KL in (examples.labels_KL, examples.predictions_KL):
        np.put_along_axis(scores_KN, classes_KL, -np.inf, axis=1)
    return scores_KN.argmax(axis=1)


def overlaid(drawn_KLCHW: np.ndarray) -> np.ndarray:
    """[K, H, W, 3]: the first digit in red, the second in green, pixels of both in yellow."""
    intensity_KLHW = drawn_KLCHW.max(axis=2).clip(0, 1)
    red_KHW, green_KHW = intensity_KLHW[:, 0], intensity_KLHW[:, 1]
    return np.stack([red_KHW, green_KHW, np.zeros_like(red_KHW)], axis=-1)
