"""How a metric is written, and which way is better."""

import json
from pathlib import Path

import pytest

from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.report import render, table
from capsweep.statistics import metric_format
from capsweep.sweep import choices, expand, more_seeds, spec


@pytest.mark.parametrize(
    ("metric", "written"),
    [
        ("test/error", "2.50 %"),
        ("test/at_least_one", "2.50 %"),
        ("test/segmentation", "2.50 %"),
        ("test/reconstruction", "0.025"),
        ("test/loss", "0.025"),
    ],
)
def test_fractions_are_percent_and_everything_else_is_itself(metric: str, written: str) -> None:
    of = metric_format.measure_of(metric)
    assert of.format_number(0.025) + of.unit == written


@pytest.mark.parametrize(
    ("metric", "best"), [("test/segmentation", "80.00"), ("test/loss", "0.2")], ids=["high", "low"]
)
def test_the_best_row_is_the_highest_where_higher_is_better(
    metric: str, best: str, tmp_path: Path
) -> None:
    sweep = choices.load_sweep("overlap", choices.Choices(seeds="1", metric=metric))
    points = expand.expand_sweep(sweep)
    for point, value in zip(points, (0.2, 0.8, 0.5), strict=True):
        path = tmp_path / folder_of(point.cell.signature)
        path.mkdir(parents=True)
        (path / "result.json").write_text(json.dumps({"metrics": {metric: value}}))
    text = render.render_markdown(table.build_table(sweep, points, Ledger(str(tmp_path))))
    unit = metric_format.measure_of(metric).unit
    assert [field for field in text.split("**") if field.startswith(best)] == [f"{best}{unit} (1)"]
    assert ("points of a percent" in text) == bool(unit)


def test_a_table_of_another_metric_is_a_file_of_its_own_without_published_numbers() -> None:
    usual = choices.load_sweep("overlap", choices.Choices(metric="test/error"))
    other = choices.load_sweep("overlap", choices.Choices(metric="test/segmentation"))
    assert usual == choices.load_sweep("overlap", choices.Choices())
    assert (usual.table_file, other.table_file) == ("table.md", "table-test-segmentation.md")
    assert usual.published.values
    assert not other.published.values


@pytest.fixture
def only_capsules_draw(tmp_path: Path) -> tuple[spec.Sweep, list[expand.Point]]:
    """Two seeds of the CNN, which has no decoder, and of CapsNet, in the ledger at tmp_path."""
    chosen = choices.Choices(seeds="2", routing="3", metric="test/segmentation")
    sweep = choices.load_sweep("overlap", chosen)
    points = expand.expand_sweep(sweep)
    for point in points:
        drawn = {"test/segmentation": 0.8} if point.arm == "capsnet" else {}
        path = tmp_path / folder_of(point.cell.signature)
        path.mkdir(parents=True)
        (path / "result.json").write_text(json.dumps({"metrics": {"test/error": 0.1, **drawn}}))
    return sweep, points


def test_a_row_without_the_metric_is_a_gap_that_is_said(
    only_capsules_draw: tuple[spec.Sweep, list[expand.Point]], tmp_path: Path
) -> None:
    text = render.render_markdown(table.build_table(*only_capsules_draw, Ledger(str(tmp_path))))
    assert "| cnn | – | – | – | – |" in text
    assert "| capsnet | 3 | 80.00 ± 0.00 % (2) | – | – |" in text
    assert "–: test/segmentation is not measured there." in text


def test_where_an_order_is_undecided_is_asked_only_of_rows_with_the_metric(
    only_capsules_draw: tuple[spec.Sweep, list[expand.Point]], tmp_path: Path
) -> None:
    assert more_seeds.find_undecided(*only_capsules_draw, Ledger(str(tmp_path)), 1) == set()


def test_a_table_says_which_composed_images_its_cells_were_tested_on(tmp_path: Path) -> None:
    sweep = choices.load_sweep("overlap", choices.Choices(seeds="2"))
    points = expand.expand_sweep(sweep)
    for point in points[:3]:
        path = tmp_path / folder_of(point.cell.signature)
        path.mkdir(parents=True)
        result = {"metrics": {"test/error": 0.25}, "test_sha256": "ab12"}
        (path / "result.json").write_text(json.dumps(result))
    text = render.render_markdown(table.build_table(sweep, points, Ledger(str(tmp_path))))
    assert text.count("test set of multidigits: composed, sha256 ab12.") == 1
