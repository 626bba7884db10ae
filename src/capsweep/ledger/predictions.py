"""The predictions of a finished cell, checked against its result.

Shape letters: M test examples, N classes, L classes shown in one image.
"""

import numpy as np

from capsweep.errors import DamageError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import Ledger
from capsweep.ledger.stored_files import REMOVE
from capsweep.statistics.examples import find_wrong

ERROR = "test/error"
Predictions = tuple[np.ndarray, np.ndarray]  # scores [M, N] and labels, [M] or [M, L]


def load_predictions(ledger: Ledger, signature: str) -> Predictions:
    """Scores [M, N] and labels, [M] or [M, L], of a finished cell.

    Raises DamageError when it has none, for a file that cannot be read, or for one of which the
    error is not that of the cell's result.
    """
    content = ledger.read(signature, "predictions.npz")
    if content is None:
        raise DamageError(f"{signature}: it has no predictions.npz; {REMOVE}")
    where = f"{ledger.where(signature)}/predictions.npz"
    scores_MN, labels = stored_files.read_predictions(content, where)
    result = ledger.read_result(signature) or {}
    if (error := result.get("metrics", {}).get(ERROR)) is not None:
        _check_error(scores_MN, labels, error, where)
    return scores_MN, labels


def _check_error(scores_MN: np.ndarray, labels: np.ndarray, error: float, where: str) -> None:
    """Of equal scores, a device may have taken another for the highest than numpy does."""
    try:
        wrong_M = find_wrong(scores_MN, labels)
    except ValueError:  # no predictions: who asks for their error is told
        return
    shown = labels.reshape(len(labels), -1).shape[1]
    ranked_MN = np.sort(scores_MN, axis=1)
    ties = int((ranked_MN[:, -shown] == ranked_MN[:, -shown - 1]).sum())
    if abs(float(wrong_M.mean()) - error) > (ties + 0.5) / len(wrong_M):
        why = f"its error is {wrong_M.mean():.6g}, and {error:.6g} in result.json"
        raise stored_files.damage_error(where, why, REMOVE)
