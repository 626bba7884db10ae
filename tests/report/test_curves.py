"""Curves over seeds: a mean, and a band that holds it; like is shown with like."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reported_cells import finish, rows, small_sweep

from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.report import cells, curve_figures, table
from capsweep.report.cells import FieldCells

VALUES = st.floats(-1e6, 1e6)


def fields_of(folder: Path) -> list[FieldCells]:
    """Of the small sweep, with the ledger in the same folder."""
    sweep, points = small_sweep(folder)
    ledger = Ledger(folder)
    return cells.cells_behind(
        table.build_table(sweep, points, ledger), cells.read_cells(points, ledger)
    )


def test_a_curve_has_the_mean_and_the_ends_of_its_seeds() -> None:
    found = curve_figures.over_seeds("row", 0, [{0: 1.0, 1: 0.5}, {0: 3.0, 1: 0.25}])
    assert found == curve_figures.Curve(
        "row", 0, (1, 2), (2.0, 0.375), (1.0, 0.25), (3.0, 0.5), seeds=2, lengths=(2, 2)
    )


def test_a_curve_ends_with_its_shortest_seed_and_tells_of_the_longest() -> None:
    found = curve_figures.over_seeds("row", 0, [{0: 1.0, 1: 0.5, 2: 0.25}, {0: 3.0}])
    assert found is not None
    assert (found.epochs, found.mean, found.lengths) == ((1,), (2.0,), (1, 3))


def test_an_epoch_in_which_a_seed_is_not_finite_is_a_gap() -> None:
    found = curve_figures.over_seeds(
        "row", 0, [{0: 1.0, 1: math.nan, 2: 2.0}, {0: 1.0, 1: 1.0, 2: 2.0}]
    )
    assert found is not None
    assert found.epochs == (1, 3)


def test_seeds_without_a_common_epoch_have_no_curve() -> None:
    assert curve_figures.over_seeds("row", 0, [{0: 1.0}, {1: 1.0}]) is None
    assert curve_figures.over_seeds("row", 0, []) is None


@given(st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=7))
def test_a_band_holds_its_mean(seeds: list[list[float]]) -> None:
    found = curve_figures.over_seeds("row", 0, [dict(enumerate(values)) for values in seeds])
    assert found is not None
    assert len(found.epochs) == min(map(len, seeds))
    assert all(
        low <= mean <= high
        for low, mean, high in zip(found.low, found.mean, found.high, strict=True)
    )


@given(VALUES, st.integers(1, 12))
def test_equal_seeds_have_their_value_as_mean_and_no_band(value: float, seeds: int) -> None:
    found = curve_figures.over_seeds("row", 0, [{0: value}] * seeds)
    assert found is not None
    assert found.mean == found.low == found.high == (value,)


def test_throughput_is_the_training_images_of_an_epoch_by_its_seconds(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    epochs = rows([0.4, 0.2])
    epochs[1]["seconds"] = 4.0
    finish(tmp_path, points[0], 0.1, epochs)  # 50 images / s over 4 s: 100 an epoch
    (cell,) = fields_of(tmp_path)[0].counted_cells
    assert curve_figures.read_throughput(cell) == {0: 50.0, 1: 25.0}


def test_validation_is_shown_only_where_all_cells_have_it(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    finish(tmp_path, points[0], 0.1, rows([1.0, 0.5], split="val", **{"train/loss": 2.0}))
    assert curve_figures.split_of(fields_of(tmp_path), "loss") == "val/loss"
    finish(tmp_path, points[2], 0.1, rows([1.0, 0.5], split="train"))
    assert curve_figures.split_of(fields_of(tmp_path), "loss") == "train/loss"


def test_a_cell_that_was_stopped_early_is_in_no_curve(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    finish(tmp_path, points[0], 0.1)
    stopped = finish(tmp_path, points[1], 0.1)
    (stopped / "result.json").rename(stopped / "stopped.json")
    (curve,) = curve_figures.collect_curves(fields_of(tmp_path), curve_figures.of_rows("val/loss"))
    assert (curve.seeds, curve.mean) == (1, (0.4, 0.2, 0.1))


def test_an_epoch_that_was_run_twice_counts_once_and_a_torn_line_is_left_out(
    tmp_path: Path,
) -> None:
    _, points = small_sweep(tmp_path)
    finish(tmp_path, points[0], 0.1, rows([0.4, 0.2]))
    path = tmp_path / folder_of(points[0].cell.signature) / "metrics.jsonl"
    path.write_text(path.read_text() + '{"epoch": 1, "val/loss": 0.3}\n{"epoch": 2, "val/')
    (cell,) = fields_of(tmp_path)[0].counted_cells
    assert curve_figures.of_rows("val/loss")(cell) == {0: 0.4, 1: 0.3}


def test_equal_schedules_are_one_curve(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    for point in points:
        finish(tmp_path, point, 0.1)
    found = curve_figures.collect_curves(fields_of(tmp_path), curve_figures.of_rows("lr"))
    ((curve, others),) = curve_figures.group_equal_curves(found)
    assert (len(found), len(others)) == (3, 2)
    assert curve.mean == pytest.approx((1.0, 0.5, 0.25))
