"""How a metric is written, and which way is better."""

import json
from pathlib import Path

import pytest

from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.report import measure, render, table
from capsweep.sweep import choices, expand, spec


@pytest.mark.parametrize(
    ("metric", "written"),
    [
        ("test/error", "2.50 %"),
        ("test/at_least_one", "2.50 %"),
        ("test/segmentation", "2.50 %"),
        ("test/reconstruction", "0.03"),
        ("test/loss", "0.03"),
    ],
)
def test_fractions_are_percent_and_everything_else_is_itself(metric: str, written: str) -> None:
    of = measure.of(metric)
    assert of.number(0.025) + of.unit == written


@pytest.mark.parametrize(
    ("metric", "best"), [("test/segmentation", "80.00"), ("test/loss", "0.20")], ids=["high", "low"]
)
def test_the_best_row_is_the_highest_where_higher_is_better(
    metric: str, best: str, tmp_path: Path
) -> None:
    sweep, _ = choices.apply(spec.load("overlap"), choices.Choices(seeds="1", metric=metric))
    points = expand.points(sweep)
    for point, value in zip(points, (0.2, 0.8, 0.5), strict=True):
        path = tmp_path / folder_of(point.cell.signature)
        path.mkdir(parents=True)
        (path / "result.json").write_text(json.dumps({"metrics": {metric: value}}))
    text = render.markdown(table.build(sweep, points, Ledger(str(tmp_path))))
    unit = measure.of(metric).unit
    assert [field for field in text.split("**") if field.startswith(best)] == [f"{best}{unit} (1)"]
    assert ("points of a percent" in text) == bool(unit)


def test_a_table_of_another_metric_is_a_file_of_its_own_without_published_numbers() -> None:
    usual, _ = choices.apply(spec.load("overlap"), choices.Choices(metric="test/error"))
    other, _ = choices.apply(spec.load("overlap"), choices.Choices(metric="test/segmentation"))
    assert usual == choices.apply(spec.load("overlap"), choices.Choices())[0]
    assert (usual.table_file, other.table_file) == ("table.md", "table-test-segmentation.md")
    assert usual.published.values
    assert not other.published.values
