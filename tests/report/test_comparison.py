"""Two cells on the same test examples."""

import json

import numpy as np
import pytest
import yaml

from capsweep.config import compose
from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger, folder_of, load_predictions
from capsweep.report import evaluation_tables

LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1])


def scores(predicted: list[int]) -> np.ndarray:
    """Outputs whose largest class is the prediction."""
    return np.eye(3)[predicted]


def test_examples_that_only_one_gets_wrong_decide() -> None:
    right, three_wrong = list(LABELS), [1, 2, 0, 0, 1, 2, 0, 1]
    found = evaluation_tables.compare_predictions(
        scores(three_wrong), LABELS, scores(right), LABELS
    )
    assert (found.counts.first_only, found.counts.second_only, found.counts.neither) == (3, 0, 5)
    assert found.difference == 3 / 8
    assert found.p == 0.25  # two sides of three heads in three throws
    assert found.interval[0] <= 3 / 8 <= found.interval[1]
    text = evaluation_tables.describe_comparison(found, "here", "there")
    assert "8 test examples: wrong only in here: 3, only in there: 0, in both: 0" in text
    assert "p = 0.25 (McNemar, exact)" in text


def test_one_cell_has_wilsons_interval() -> None:
    said = evaluation_tables.describe_error(scores([1, *LABELS[1:]]), LABELS)
    assert said == ("test error 12.50 % (1 of 8 examples), 95 % interval [2.24, 47.09] (Wilson)")


@pytest.mark.parametrize("damaged", [np.full((8, 3), np.nan), np.eye(3)])
def test_scores_that_are_no_predictions_are_refused(damaged: np.ndarray) -> None:
    good = scores(list(LABELS))
    with pytest.raises(UserError, match="one row of finite numbers for each label"):
        evaluation_tables.compare_predictions(good, LABELS, damaged, LABELS)
    with pytest.raises(UserError, match="one row of finite numbers for each label"):
        evaluation_tables.compare_predictions(good[:0], LABELS[:0], good[:0], LABELS[:0])


def test_different_examples_cannot_be_compared(tmp_path) -> None:
    with pytest.raises(UserError, match="tested on different examples"):
        evaluation_tables.compare_predictions(
            scores(list(LABELS)), LABELS, scores([0, 1]), LABELS[:2]
        )
    with pytest.raises(UserError, match=r"abc: it has no predictions\.npz"):
        load_predictions(Ledger(tmp_path), "abc")


def test_two_classes_in_one_image_are_compared_too() -> None:
    labels = np.array([[0, 1], [1, 2], [0, 2]])
    right = np.array([[0.9, 0.8, 0.0], [0.0, 0.9, 0.8], [0.8, 0.0, 0.9]])
    found = evaluation_tables.compare_predictions(right[::-1], labels, right, labels)
    assert (found.counts.first_only, found.counts.neither) == (2, 1)
    assert evaluation_tables.describe_error(right, labels).startswith(
        "test error 0.00 % (0 of 3 examples)"
    )


def known(folder, name: str, *overrides: str, **result: str) -> None:
    """The ledger at `folder` knows a cell by what it was tested on."""
    path = folder / folder_of(name)
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(dict(compose.cell(overrides).science)))
    (path / "result.json").write_text(json.dumps({"metrics": {}, **result}))


def test_equal_labels_of_other_images_cannot_be_compared(tmp_path) -> None:
    known(tmp_path, "aa", "dataset=mnist")
    known(tmp_path, "bb", "dataset=mnist", "dataset.shift=0", "model=cnn_small")
    known(tmp_path, "cc", "dataset=affnist_like")
    pairs = ["dataset=multimnist", "model=capsnet"]
    known(tmp_path, "dd", *pairs, test_sha256="1")
    known(tmp_path, "ee", *pairs, "dataset.batches.shift=6", test_sha256="2")
    evaluation_tables.check_same_examples(Ledger(tmp_path), "aa", "bb")
    for first, second, key in (("aa", "cc", r"dataset\.test"), ("dd", "ee", "test_sha256")):
        with pytest.raises(UserError, match=rf"tested on different examples \({key} differs\)"):
            evaluation_tables.check_same_examples(Ledger(tmp_path), first, second)
