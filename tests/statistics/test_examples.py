"""Error rates over test examples, the worst of them, and numbers that are counted, not kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsweep.statistics.examples import (
    count_classes,
    count_confusions,
    find_worst,
    find_wrong,
    predict_classes,
    wilson_interval,
)


def test_an_interval_is_not_empty_at_no_error() -> None:
    assert wilson_interval(0, 100) == pytest.approx((0.0, 0.036993), abs=1e-6)
    assert wilson_interval(25, 100) == pytest.approx((0.175452, 0.343044), abs=1e-6)


@given(total=st.integers(1, 50), seed=st.integers(0, 1000))
def test_of_one_class_wrong_is_argmax_ties_included(total: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.integers(0, 3, (total, 4)) / 2  # many ties
    labels = generator.integers(0, 4, total)
    expected = (scores.argmax(axis=1) != labels).tolist()
    assert find_wrong(scores, labels).tolist() == expected
    assert find_wrong(scores, labels[:, None]).tolist() == expected


def test_two_classes_are_right_only_when_both_are_highest() -> None:
    scores = np.array([[0.9, 0.8, 0.1], [0.8, 0.9, 0.1], [0.9, 0.1, 0.8]])
    for labels in ([[0, 1]] * 3, [[1, 0]] * 3):
        assert find_wrong(scores, np.array(labels)).tolist() == [False, False, True]


def test_classes_are_counted_as_shown_missed_and_predicted() -> None:
    scores = np.array([[3, 1, 2, 0], [3, 1, 2, 0], [0, 1, 2, 3]])
    labels_M, labels_ML = np.array([0, 2, 2]), np.array([[0, 1], [2, 0], [3, 2]])
    one = {"examples": [1, 0, 2, 0], "missed": [0, 0, 2, 0], "predicted": [2, 0, 0, 1]}
    assert count_classes(scores, labels_M) == one
    two = {"examples": [2, 1, 2, 1], "missed": [0, 1, 0, 0], "predicted": [2, 0, 3, 1]}
    assert count_classes(scores, labels_ML) == two
    rows = [[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]
    assert count_confusions(scores, labels_M).tolist() == rows


@pytest.mark.parametrize(
    ("scores", "labels", "said"),
    [
        (np.eye(3), np.array([0, 1]), "one row of finite numbers"),
        (np.full((2, 3), np.inf), np.array([0, 1]), "one row of finite numbers"),
        (np.eye(2), np.array([[0, 1], [1, 1]]), "one class twice"),
        (np.eye(2)[:, :1], np.array([[0, 1], [1, 0]]), "cannot name 2 classes"),
    ],
)
def test_scores_that_are_no_predictions_of_the_labels_are_refused(
    scores: np.ndarray, labels: np.ndarray, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        find_wrong(scores, labels)


@given(data=st.data(), shown=st.integers(1, 3))
def test_the_worst_examples_are_wrong_and_the_surest_first(data: st.DataObject, shown: int) -> None:
    seed = data.draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    scores = generator.integers(0, 4, (10, 5)).astype(np.float64)  # with ties
    labels = np.stack([generator.permutation(5)[:shown] for _ in range(10)])
    given_labels = labels[:, 0] if shown == 1 else labels
    indices, margins = find_worst(scores, given_labels)
    expected = np.flatnonzero(find_wrong(scores, given_labels))
    assert sorted(indices) == expected.tolist()
    assert (np.diff(margins) <= 0).all()
    assert (margins >= 0).all()
    found = predict_classes(scores[indices], shown)
    for index, margin, classes in zip(indices, margins, found, strict=True):
        others = np.delete(scores[index], labels[index])
        assert margin == others.max() - scores[index][labels[index]].min()
        assert set(classes) != set(labels[index])
