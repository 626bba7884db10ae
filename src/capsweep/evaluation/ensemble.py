"""An ensemble of trained networks, from the scores that they stored: no model is run.

Shape letters: M test examples, N classes.
"""

from collections.abc import Mapping

import numpy as np

from capsweep.errors import UserError
from capsweep.ledger.ledger import Predictions
from capsweep.statistics.examples import find_wrong


def find_wrong_together(members: Mapping[str, Predictions]) -> np.ndarray:
    """Which examples [M] are classified wrongly by the scores of all members added.

    members: by signature. Raises UserError as `add_scores`.
    """
    return find_wrong(add_scores(members), next(iter(members.values()))[1])


def add_scores(members: Mapping[str, Predictions]) -> np.ndarray:
    """The sum of the members' scores [M, N], in float64: the longest capsules on average.

    Raises UserError naming the first two cells that were tested on different examples or classes.
    """
    (first, (first_MN, first_labels)), *others = members.items()
    for name, (scores_MN, labels) in others:
        if scores_MN.shape != first_MN.shape:
            shapes = f"{first_MN.shape} and {scores_MN.shape}"
            raise UserError(f"cells {first} and {name} have scores of shapes {shapes}")
        if not np.array_equal(labels, first_labels):
            raise UserError(
                f"cells {first} and {name} were tested on different labels; only "
                "networks that saw the same test examples are an ensemble"
            )
    return np.stack([scores for scores, _ in members.values()]).sum(axis=0, dtype=np.float64)


def measure_error(name: str, predictions: Predictions) -> float:
    """The test error of one member. Raises UserError for scores that are no predictions."""
    try:
        return float(find_wrong(*predictions).mean())
    except ValueError as error:
        raise UserError(f"{name}: predictions.npz: {error}; run the cell again") from error
