"""Two cells on the same test examples."""

import json
from typing import Any

import numpy as np
import pytest
import reported_cells
import yaml

from capsweep.config import compose
from capsweep.errors import UserError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import Ledger, folder_of, load_predictions
from capsweep.report import comparison

LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1])


def scores(predicted: list[int]) -> np.ndarray:
    """Outputs whose largest class is the prediction."""
    return np.eye(3)[predicted]


def test_examples_that_only_one_gets_wrong_decide() -> None:
    right, three_wrong = list(LABELS), [1, 2, 0, 0, 1, 2, 0, 1]
    cells = {"here": (scores(three_wrong), LABELS), "there": (scores(right), LABELS)}
    text = comparison.describe_comparison(cells)
    assert "8 test examples: wrong only in here: 3, only in there: 0, in both: 0" in text
    assert "difference of error +37.50 points" in text
    assert "p = 0.25 (McNemar, exact)" in text  # two sides of three heads in three throws


@pytest.mark.parametrize("damaged", [np.full((8, 3), np.nan), np.eye(3)])
def test_scores_that_are_no_predictions_are_refused(damaged: np.ndarray) -> None:
    cells = {"one": (scores(list(LABELS)), LABELS), "other": (damaged, LABELS)}
    with pytest.raises(UserError, match="one row of finite numbers for each label"):
        comparison.describe_comparison(cells)


def test_a_cell_without_predictions_is_named_and_stands_in_a_table(tmp_path) -> None:
    _, points = reported_cells.small_sweep(tmp_path)
    folder = reported_cells.finish(tmp_path, points[0], 0.1)
    with pytest.raises(UserError, match=rf"cell {folder.name} has no predictions\.npz"):
        load_predictions(Ledger(tmp_path), folder.name)
    assert reported_cells.build_table(tmp_path).groups[0].by_seed == {0: 0.1}


def write_cell(folder, *overrides: str, **result: Any) -> str:
    """Write a cell of the ledger at `folder`, and what it was tested on; its signature."""
    cell = compose.cell(overrides)
    path = folder / folder_of(cell.signature)
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(cell.science))
    whole = stored_files.with_digests({"metrics": {}, **result}, {})
    (path / "result.json").write_text(json.dumps(whole))
    return cell.signature


def test_equal_labels_of_other_images_cannot_be_compared(tmp_path) -> None:
    pairs = ["dataset=multimnist", "model=capsnet"]
    aa = write_cell(tmp_path, "dataset=mnist")
    bb = write_cell(tmp_path, "dataset=mnist", "dataset.shift=0", "model=cnn_small")
    cc = write_cell(tmp_path, "dataset=affnist_like")
    dd = write_cell(tmp_path, *pairs, test_sha256="1" * 64)
    ee = write_cell(tmp_path, *pairs, "seed=1", test_sha256="2" * 64)
    ff = write_cell(tmp_path, "model=capsnet", data={"test": "1a" * 32})
    gg = write_cell(tmp_path, "model=cnn_small", data={"test": "2b" * 32})
    comparison.check_same_examples(Ledger(tmp_path), aa, bb)
    for first, second, key in (
        (aa, cc, r"dataset\.test"),
        (dd, ee, "test_sha256"),
        (ff, gg, r"data\.test"),
    ):
        with pytest.raises(UserError, match=rf"tested on different examples \({key} differs\)"):
            comparison.check_same_examples(Ledger(tmp_path), first, second)
