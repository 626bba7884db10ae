"""The report's figures: curves over seeds, costs of rows, and what is drawn of them."""

import math
from pathlib import Path

import numpy as np
import pytest
from reported_cells import PROVENANCE, SWEEP, build_table, finish, rows, small_sweep

from capsweep.errors import DamageError
from capsweep.ledger.ledger import Ledger, load_predictions
from capsweep.report import charts, figures
from capsweep.report.charts import Curve
from capsweep.report.figures import ReportFigure
from capsweep.statistics.examples import count_classes


def draw(folder: Path, text: str = SWEEP) -> dict[str, ReportFigure]:
    """The figures that are there, by stem."""
    return {f.stem: f for f in figures.make_figures(build_table(folder, text)) if f.image}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A ledger in which all six cells are finished."""
    for place, point in enumerate(small_sweep(tmp_path)[1]):
        losses = [0.4 / (1 + place), 0.2 / (1 + place), 0.1 / (1 + place)]
        finish(tmp_path, point, 0.01 * (1 + place), rows(losses))
    return tmp_path


@pytest.mark.parametrize(
    ("seeds", "curve"),
    [
        (
            [{0: 1.0, 1: 0.5}, {0: 3.0, 1: 0.25}],
            Curve("row", 0, (1, 2), (2.0, 0.375), (1.0, 0.25), (3.0, 0.5)),
        ),
        (  # it ends with the shortest seed
            [{0: 1.0, 1: 0.5, 2: 0.25}, {0: 3.0}],
            Curve("row", 0, (1,), (2.0,), (1.0,), (3.0,)),
        ),
        (  # a number that is not finite is a gap
            [{0: 1.0, 1: math.nan, 2: 2.0}, {0: 1.0, 1: 1.0, 2: 2.0}],
            Curve("row", 0, (1, 3), (1.0, 2.0), (1.0, 2.0), (1.0, 2.0)),
        ),
        ([{0: 1.0}, {1: 1.0}], None),
        ([], None),
    ],
)
def test_a_curve_has_the_mean_and_the_ends_of_its_seeds(
    seeds: list[dict[int, float]], curve: Curve | None
) -> None:
    assert figures.average_seeds("row", 0, seeds) == ([curve] if curve else [])


def test_validation_is_shown_only_where_all_cells_have_it(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    finish(tmp_path, points[0], 0.1, rows([1.0, 0.5], split="val", **{"train/loss": 2.0}))
    assert figures.choose_split("loss", build_table(tmp_path).groups) == "val/loss"
    finish(tmp_path, points[2], 0.1, rows([1.0, 0.5], split="train"))
    assert figures.choose_split("loss", build_table(tmp_path).groups) == "train/loss"


def test_a_row_costs_the_time_of_its_cells(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    other = PROVENANCE | {"hardware": {"processor": "Another"}}
    finish(tmp_path, points[0], 0.1, gpu_hours=0.5)
    finish(tmp_path, points[1], 0.3, provenance=other, gpu_hours=1.5)
    caption = draw(tmp_path)["cost-time"].caption
    assert caption.startswith("device minutes of a cell: mean over seeds")
    assert caption.endswith("Training and test, on A processor, Another.")
    finish(tmp_path, points[2], 0.1, gpu_hours=0.0)  # it ran on no GPU
    assert draw(tmp_path)["cost-time"].caption.startswith("wall minutes of a cell")


def test_nothing_is_drawn_of_nothing_and_each_absence_has_its_reason(tmp_path: Path) -> None:
    absent = list(figures.make_figures(build_table(tmp_path)))
    assert not any(figure.image for figure in absent)
    reasons = [figure.caption for figure in absent]
    assert len(reasons) == 4
    assert ": 0 rows have results, and a figure has room for 40." in reasons[0]
    assert "train/loss: no finished cell recorded it by epoch." in reasons


def test_a_figure_is_made_where_its_numbers_are_and_has_the_same_bytes_each_time(
    finished: Path,
) -> None:
    drawn = draw(finished)
    assert list(drawn) == ["table", "cost-time", "loss", "error"]
    assert drawn == draw(finished)
    assert drawn["table"].names == ["cnn · –", "capsnet · 1", "capsnet · 3"]
    assert drawn["table"].caption.endswith("the dotted line is the mean of cnn · –.")


def test_each_column_of_the_table_has_its_figures_and_no_name_is_mathematics(
    tmp_path: Path,
) -> None:
    text = (
        SWEEP.replace("columns: [dataset]", "columns: [batch_size]")
        .replace("dataset: mnist", "batch_size: 8")
        .replace("{routing.num_iters: [1, 3]}", "{batch_size: [8, 16]}")
        .replace("rows: [arm, routing.num_iters]", "rows: [arm]")
        .replace("capsnet:", "'_x$^{':")
    )
    for point in small_sweep(tmp_path, text)[1]:
        finish(tmp_path, point, 0.1)
    assert {"table", "loss-batch-size-8-1", "loss-batch-size-16-2"} <= set(draw(tmp_path, text))


def test_columns_of_several_epochs_are_curves_of_the_rows_that_are_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        SWEEP.replace("columns: [dataset]", "columns: [dataset, epochs]")
        .replace("model=cnn_small]", "model=cnn_small], space: {epochs: [4, 2]}")
        .replace("routing.num_iters: [1, 3]", "epochs: [4, 2]")
        .replace("rows: [arm, routing.num_iters]", "rows: [arm]")
    )
    for number, point in enumerate(small_sweep(tmp_path, text)[1][:-1]):
        finish(tmp_path, point, number / 100)
    drawn = []
    monkeypatch.setattr(charts, "draw_once", lambda _, *numbers: drawn.append(numbers))
    table = build_table(tmp_path, text)
    figures.make_table_figure(table)
    assert table.titles == ["digits, epochs=4", "digits, epochs=2"]
    cnn = Curve("cnn", 0, (2, 4), (2.5, 0.5), (2.0, 0.0), (3.0, 1.0))
    whole = Curve("capsnet", 1, (4,), (4.5,), (4.0,), (5.0,))  # a seed of two epochs is missing
    assert drawn == [("test/error (%)", {"digits": [cnn, whole]}, figures.MOST_ACROSS)]


def test_of_many_rows_the_baseline_and_the_best_are_drawn(tmp_path: Path) -> None:
    text = SWEEP.replace("[1, 3]", str(list(range(1, 20))))
    for number, point in enumerate(small_sweep(tmp_path, text)[1]):
        finish(tmp_path, point, 0.9 - number / 100)
    told = "14 of the 20 rows are drawn: the baseline and the best by test/error."
    assert told in figures.describe_rows(build_table(tmp_path, text))
    best = [f"capsnet · {number}" for number in range(7, 20)]
    assert draw(tmp_path, text)["loss"].names == ["cnn · –", *best]


def test_errors_by_class_and_confusions_are_means_over_seeds_of_the_worst_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "draw_once", lambda _, *numbers: numbers)
    monkeypatch.setattr(figures, "MOST_CLASSES", 2)
    shown = np.repeat(np.arange(10), 4)
    for wrong, point in enumerate(small_sweep(tmp_path)[1][2:4], 1):
        named = shown.copy()
        named[-wrong:] = 0  # one and two of four 9s are taken for 0s
        scores = np.eye(10)[named]
        folder = finish(tmp_path, point, 0.1, classes=count_classes(scores, shown))
        np.savez(folder / "predictions.npz", scores=scores, labels=shown)
    errors, confusion = figures.make_class_figures(build_table(tmp_path), Ledger(tmp_path))
    assert errors.image[:3] == ([[0, 37.5]], ["capsnet · 1"], ["0", "9"])
    assert errors.caption.endswith("Of 10 classes, the 2 with the largest errors: 0, 9.")
    assert confusion.image[:2] == ([[100, 0, 0], [37.5, 62.5, 0]], ["0", "9"])
    assert confusion.image[2] == ["0", "9", "others"]


def test_a_cell_without_predictions_is_named(tmp_path: Path) -> None:
    folder = finish(tmp_path, small_sweep(tmp_path)[1][0], 0.1)
    with pytest.raises(DamageError, match=rf"cell {folder.name} has no predictions\.npz"):
        load_predictions(Ledger(tmp_path), folder.name)
