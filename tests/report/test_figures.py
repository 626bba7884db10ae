"""The report's figures: curves over seeds, costs of rows, and what is drawn of them."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reported_cells import SWEEP, finish, read_fields, rows, small_sweep

from capsweep.ledger.ledger import folder_of
from capsweep.report import figures
from capsweep.report.cells import FieldCells
from capsweep.report.charts import Curve
from capsweep.report.figures import ReportFigure

VALUES = st.floats(-1e6, 1e6)


def draw(folder: Path, text: str = SWEEP) -> dict[str, ReportFigure]:
    """The figures that are there, by stem."""
    return {f.stem: f for f in figures.make_figures(*read_fields(folder, text)) if f.image}


def fields_of(folder: Path) -> list[FieldCells]:
    """Of the small sweep."""
    return read_fields(folder)[1]


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
            Curve("row", 0, (1, 2), (2.0, 0.375), (1.0, 0.25), (3.0, 0.5), 2, (2, 2)),
        ),
        (  # it ends with the shortest seed, and tells of the longest
            [{0: 1.0, 1: 0.5, 2: 0.25}, {0: 3.0}],
            Curve("row", 0, (1,), (2.0,), (1.0,), (3.0,), 2, (1, 3)),
        ),
        (  # a number that is not finite is a gap
            [{0: 1.0, 1: math.nan, 2: 2.0}, {0: 1.0, 1: 1.0, 2: 2.0}],
            Curve("row", 0, (1, 3), (1.0, 2.0), (1.0, 2.0), (1.0, 2.0), 2, (3, 3)),
        ),
        ([{0: 1.0}, {1: 1.0}], None),
        ([], None),
    ],
)
def test_a_curve_has_the_mean_and_the_ends_of_its_seeds(
    seeds: list[dict[int, float]], curve: Curve | None
) -> None:
    assert figures.average_seeds("row", 0, seeds) == curve


@given(st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=7))
def test_a_band_holds_its_mean(seeds: list[list[float]]) -> None:
    curve = figures.average_seeds("row", 0, [dict(enumerate(values)) for values in seeds])
    assert curve is not None
    assert len(curve.epochs) == min(map(len, seeds))
    bands = zip(curve.low, curve.mean, curve.high, strict=True)
    assert all(low <= mean <= high for low, mean, high in bands)


@given(VALUES, st.integers(1, 12))
def test_equal_seeds_have_their_value_as_mean_and_no_band(value: float, seeds: int) -> None:
    curve = figures.average_seeds("row", 0, [{0: value}] * seeds)
    assert curve is not None
    assert curve.mean == curve.low == curve.high == (value,)


def test_throughput_is_the_training_images_of_an_epoch_by_its_seconds(tmp_path: Path) -> None:
    epochs = rows([0.4, 0.2])
    epochs[1]["seconds"] = 4.0
    finish(tmp_path, small_sweep(tmp_path)[1][0], 0.1, epochs)  # 50 images / s over 4 s
    (cell,) = fields_of(tmp_path)[0].counted_cells
    assert figures.read_throughput(cell) == {0: 50.0, 1: 25.0}


def test_validation_is_shown_only_where_all_cells_have_it(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    finish(tmp_path, points[0], 0.1, rows([1.0, 0.5], split="val", **{"train/loss": 2.0}))
    assert figures.plan_curves(fields_of(tmp_path))[0].label == "val/loss"
    finish(tmp_path, points[2], 0.1, rows([1.0, 0.5], split="train"))
    assert figures.plan_curves(fields_of(tmp_path))[0].label == "train/loss"


def test_a_row_costs_the_mean_of_its_seeds_and_one_that_lacks_a_seed_is_left_out(
    tmp_path: Path,
) -> None:
    _, points = small_sweep(tmp_path)
    finish(tmp_path, points[0], 0.1, seconds={"fit": 1.0, "total": 10.0})
    assert figures.collect_costs(*read_fields(tmp_path)) == []
    finish(tmp_path, points[1], 0.3, seconds={"fit": 1.0, "total": 20.0}, hardware="Another")
    (cost,) = figures.collect_costs(*read_fields(tmp_path))
    assert (cost.name, cost.seconds, cost.parameters) == ("cnn · –", 15.0, 1000)
    assert (cost.mean, cost.std) == (pytest.approx(0.2), pytest.approx(0.02**0.5))
    caption = draw(tmp_path)["cost-time"].caption
    assert "on A processor, Another (different hardware: its times do not compare)" in caption
    assert "Rows that lack seeds are left out: 2." in caption


def test_device_hours_count_where_every_cell_has_them(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    for point, hours in zip(points, (0.5, 1.5), strict=False):
        finish(tmp_path, point, 0.1, gpu_hours=hours)
    assert figures.collect_costs(*read_fields(tmp_path))[0].seconds == 3600.0
    assert "against the device time of a cell" in draw(tmp_path)["cost-time"].caption
    finish(tmp_path, points[2], 0.1, gpu_hours=0.0)  # it ran on no GPU
    assert "against the wall time of a cell" in draw(tmp_path)["cost-time"].caption


def test_nothing_is_drawn_of_nothing_and_each_absence_has_its_reason(tmp_path: Path) -> None:
    absent = list(figures.make_figures(*read_fields(tmp_path)))
    assert len(absent) == len(figures.KINDS)
    assert not any(figure.image for figure in absent)
    why = [figure.caption for figure in absent]
    assert "margin of the loss: no finished cell tells a margin that grows." in why
    assert any("no row has all of its seeds" in reason for reason in why)


def test_a_figure_is_made_where_its_numbers_are_and_has_the_same_bytes_each_time(
    finished: Path,
) -> None:
    stems = ["loss", "error", "throughput", "learning-rate", "cost-time", "cost-parameters"]
    drawn = draw(finished)
    assert list(drawn) == stems
    assert drawn == draw(finished)
    assert "for all rows." in drawn["learning-rate"].alt  # equal schedules are one
    with_margin = rows([0.4, 0.2], margin=0.5)
    (finished / folder_of(small_sweep(finished)[1][0].cell.signature)).rename(finished / "gone")
    finish(finished, small_sweep(finished)[1][0], 0.1, with_margin)
    assert "margin" in draw(finished)


def test_a_caption_says_which_seeds_ran_longer_and_which_have_no_rows(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    for point, losses in zip(points, ([0.4, 0.2, 0.1], [0.4, 0.2], [0.4]), strict=False):
        finish(tmp_path, point, 0.1, rows(losses))
    without_rows = finish(tmp_path, points[3], 0.1)
    (without_rows / "metrics.jsonl").unlink()
    caption = draw(tmp_path)["loss"].caption
    assert "cnn · –: its seeds have 2 to 3 epochs, shown are those that all have." in caption
    assert "capsnet · 1: 1 of its finished cells have no such numbers." in caption


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
    assert {"loss-8-1", "loss-16-2"} <= set(draw(tmp_path, text))


def test_of_many_rows_the_baseline_and_the_best_are_drawn(tmp_path: Path) -> None:
    text = SWEEP.replace("[1, 3]", str(list(range(1, 20))))
    for place, point in enumerate(small_sweep(tmp_path, text)[1]):
        finish(tmp_path, point, 0.9 if place < 2 else 0.5 - 0.01 * place)
    note = figures.describe_rows(read_fields(tmp_path, text)[0])
    assert f"{figures.MOST_ROWS} of the 20 rows" in note
    alt = draw(tmp_path, text)["loss"].alt
    assert ["cnn · –" in alt, "capsnet · 19" in alt, "capsnet · 1;" in alt] == [True, True, False]
