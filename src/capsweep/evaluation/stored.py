"""Whether a trained network says what its cell stored when it was tested.

Shape letters: M test examples, N classes.
"""

from dataclasses import dataclass

import numpy as np

from capsweep.errors import UserError
from capsweep.evaluation.trained import Trained
from capsweep.statistics.examples import find_wrong

AMBIGUOUS = 1e-3  # of the highest score: the next lower one may win on another device


@dataclass(frozen=True)
class Clean:
    """How many of the first `examples` test examples are classified wrongly.

    ties: those that are classified otherwise than stored, and whose two highest stored scores
    differ by less than AMBIGUOUS.
    """

    examples: int
    wrong: int
    ties: int

    @property
    def error(self) -> float:
        """As a fraction."""
        return self.wrong / self.examples

    @property
    def accuracy(self) -> float:
        """As a fraction."""
        return (self.examples - self.wrong) / self.examples


def as_stored(
    trained: Trained, stored: tuple[np.ndarray, np.ndarray], examples: int | None = None
) -> Clean:
    """The network's error, once it is as its cell's stored scores [M, N] and labels say.

    examples: the first so many; None: all that it was tested on. Raises UserError naming the cell
    when it classifies otherwise. Devices round differently, so ties may fall otherwise.
    """
    count = len(stored[1]) if examples is None else min(examples, len(stored[1]))
    scores_MN, labels = trained.scores(count)
    ties = check(trained, scores_MN, labels, (stored[0][:count], stored[1][:count]))
    return Clean(count, int(find_wrong(scores_MN, labels).sum()), ties)


def check(
    trained: Trained,
    scores_MN: np.ndarray,
    labels: np.ndarray,
    stored: tuple[np.ndarray, np.ndarray],
) -> int:
    """How many ties of some examples fall otherwise than their stored scores and labels say.

    Raises UserError naming the cell when any other example does.
    """
    stored_MN, count = stored[0], len(labels)
    if not np.array_equal(labels, stored[1]):
        raise UserError(
            f"{trained.name}: its predictions.npz has other labels; {_changed(trained)}"
        )
    differs_M = find_wrong(scores_MN, labels) != find_wrong(stored_MN, labels)
    ranked_MN = np.sort(stored_MN, axis=1)
    shown = labels.reshape(count, -1).shape[1]
    gap_M = ranked_MN[:, -shown] - ranked_MN[:, -shown - 1]
    if (differs_M & (gap_M > AMBIGUOUS * np.abs(ranked_MN[:, -1]))).any():
        raise UserError(
            f"{trained.name}: its network classifies {differs_M.sum()} of {count} test examples "
            f"otherwise than its predictions.npz says; {_changed(trained)}"
        )
    return int(differs_M.sum())


def _changed(trained: Trained) -> str:
    return f"code or data have changed: capsweep ledger reproduce {trained.name}"
