"""Ensembles from stored scores."""

import numpy as np
import pytest

from capsweep.errors import UserError
from capsweep.evaluation.ensemble import Member, add, evaluate

LABELS = np.array([0, 1, 2, 0])


def member(name: str, scores: list[list[float]], labels: np.ndarray = LABELS) -> Member:
    return Member(name, np.array(scores, dtype=np.float32), labels)


ONE = member("one", [[0.9, 0.1, 0.0], [0.6, 0.5, 0.0], [0.1, 0.2, 0.9], [0.3, 0.4, 0.0]])
TWO = member("two", [[0.4, 0.5, 0.0], [0.1, 0.5, 0.0], [0.1, 0.2, 0.9], [0.3, 0.4, 0.0]])


def test_members_that_err_on_different_examples_are_better_together() -> None:
    found = evaluate([ONE, TWO])
    assert found.single == (0.5, 0.5)
    assert (found.wrong, found.total) == (1, 4)


def test_scores_are_added_not_votes_counted() -> None:
    sure = member("sure", [[0.9, 0.0, 0.0]], np.array([0]))
    unsure = [member(name, [[0.4, 0.5, 0.0]], np.array([0])) for name in ("a", "b")]
    assert evaluate([sure, *unsure]).wrong == 0
    assert add([sure, *unsure]).dtype == np.float64
    assert add([sure, *unsure]).tolist() == [pytest.approx([1.7, 1.0, 0.0])]


def test_the_order_of_members_does_not_matter() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, 200)
    members = [Member(str(i), generator.random((200, 10)), labels) for i in range(5)]
    assert evaluate(members).wrong == evaluate(members[::-1]).wrong


def test_one_member_is_as_good_as_itself() -> None:
    found = evaluate([ONE])
    assert found.single == (found.wrong / found.total,)


def test_two_classes_in_one_image() -> None:
    labels = np.array([[2, 0], [0, 1]])
    first = member("first", [[0.8, 0.5, 0.4], [0.9, 0.3, 0.2]], labels)
    second = member("second", [[0.8, 0.1, 0.7], [0.9, 0.3, 0.2]], labels)
    found = evaluate([first, second])
    assert found.single == (0.5, 0.0)
    assert found.wrong == 0


def test_members_that_saw_other_labels_are_named() -> None:
    other = Member("other", TWO.scores_MN, np.array([0, 1, 2, 1]))
    with pytest.raises(UserError, match="cells one and other were tested on different labels"):
        evaluate([ONE, TWO, other])


@pytest.mark.parametrize("shape", [(3, 3), (4, 5)])
def test_members_of_other_shapes_are_named(shape: tuple[int, int]) -> None:
    other = Member("other", np.zeros(shape), np.zeros(shape[0], dtype=int))
    with pytest.raises(UserError, match="cells one and other have scores of shapes"):
        evaluate([ONE, other])


def test_scores_that_are_no_predictions_name_their_cell() -> None:
    damaged = Member("bad", np.full((4, 3), np.nan), LABELS)
    with pytest.raises(UserError, match=r"bad: predictions\.npz: .* run the cell again"):
        evaluate([ONE, damaged])
