"""Ensembles from stored scores; the crops of an image are tested with `capsweep eval multicrop`."""

import numpy as np
import pytest

from capsweep.errors import UserError
from capsweep.lab.evaluation.averages import find_ensemble_errors, measure_error
from capsweep.ledger.ledger import Predictions

LABELS = np.array([0, 1, 2, 0])


def make_member(scores: list[list[float]], labels: np.ndarray = LABELS) -> Predictions:
    return np.array(scores, dtype=np.float32), labels


ONE = make_member([[0.9, 0.1, 0.0], [0.6, 0.5, 0.0], [0.1, 0.2, 0.9], [0.3, 0.4, 0.0]])
TWO = make_member([[0.4, 0.5, 0.0], [0.1, 0.5, 0.0], [0.1, 0.2, 0.9], [0.3, 0.4, 0.0]])


def test_scores_are_added_not_votes_counted_in_any_order() -> None:
    sure = make_member([[0.9, 0.0, 0.0]], np.array([0]))
    unsure = make_member([[0.4, 0.5, 0.0]], np.array([0]))
    members = {"a": unsure, "b": sure, "c": unsure}
    assert not find_ensemble_errors(members).any()
    assert not find_ensemble_errors(dict(reversed(members.items()))).any()


@pytest.mark.parametrize("other", [(TWO[0], np.array([0, 1, 2, 1])), (np.zeros((4, 5)), LABELS)])
def test_members_that_do_not_belong_together_are_named(other: Predictions) -> None:
    with pytest.raises(UserError, match="cells one and other were tested on different examples"):
        find_ensemble_errors({"one": ONE, "two": TWO, "other": other})


def test_scores_that_are_no_predictions_name_their_cell() -> None:
    with pytest.raises(UserError, match=r"bad: predictions\.npz: .* run the cell again"):
        measure_error("bad", (np.full((4, 3), np.nan), LABELS))
