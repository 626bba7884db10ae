"""The table for programs: what CSV and JSON say is what the table has, and nothing is rounded."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep.ledger.ledger import Ledger
from capsweep.report import records, table
from capsweep.report.formatted_table import format_table
from capsweep.report.table import ResultTable
from capsweep.sweep import choices, expand
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

Filled = Callable[[Point, float], None]
OUT_OF_MEMORY = 'OutOfMemoryError: "3 GiB", too; much'


@pytest.fixture
def answer(ablation: tuple[Sweep, list[Point]], fill: Filled, tmp_path: Path) -> ResultTable:
    """A full row, a full row of equal values, and one of which a seed failed."""
    sweep, points = ablation
    errors = [0.1, 0.2, 1 / 3, 0.05, 0.05, 0.05, 0.1, 0.2]
    for point, error in zip(points, errors, strict=False):
        fill(point, error)
    Ledger(tmp_path).note_failure(points[8].cell.signature, OUT_OF_MEMORY)
    return table.build_table(sweep, points, Ledger(tmp_path))


def read(text: str) -> list[dict[str, str]]:
    """As any reader of CSV does."""
    return list(csv.DictReader(io.StringIO(text)))


def test_a_row_of_the_file_is_a_field_of_the_table_in_full_precision(answer: ResultTable) -> None:
    rows = read(records.as_csv(answer, format_table(answer)))
    assert len(rows) == 3
    for row, ours in zip(rows, answer.rows, strict=True):
        value = ours.values[0]
        told = [row["arm"], row["routing.num_iters"], row["loss.reconstruction.weight"]]
        assert told == ["" if c is None else str(c) for c in ours.coordinates]
        assert row["dataset"] == "digits"
        assert (int(row["n"]), int(row["wanted"])) == (len(value.by_seed), 3)
        by_seed = dict(pair.split("=") for pair in row["values"].split())
        assert {int(seed): float(number) for seed, number in by_seed.items()} == value.by_seed
        assert row["cells"].split() == list(value.cells.values())
        assert row["stale"] == str(value.stale) == row["n"]  # nobody recorded whose code made them
    first, equal, partial = rows
    summary, difference = answer.rows[0].values[0].summary, answer.rows[1].values[0].difference
    assert (float(first["mean"]), float(first["std"])) == (summary.mean, summary.std)
    assert (float(first["interval_low"]), float(first["interval_high"])) == summary.interval
    assert (float(equal["difference"]), int(equal["difference_n"])) == (difference.mean, 3)
    low, high = float(equal["difference_low"]), float(equal["difference_high"])
    assert ((low, high), float(equal["p"])) == (difference.interval, answer.rows[1].values[0].p)
    assert [row["best"] for row in rows] == ["false", "true", "false"]
    assert equal["interval_low"] == equal["interval_high"] == ""  # equal values have none
    assert first["difference"] == first["p"] == ""  # the baseline
    assert partial["causes"] == OUT_OF_MEMORY


def test_a_part_of_the_seeds_has_values_and_no_mean(answer: ResultTable) -> None:
    partial = read(records.as_csv(answer, format_table(answer)))[2]
    assert (partial["n"], partial["wanted"], partial["values"]) == ("2", "3", "0=0.1 1=0.2")
    assert partial["mean"] == partial["std"] == partial["interval_low"] == ""


def test_published_numbers_are_numbers_with_their_place(answer: ResultTable) -> None:
    rows = read(records.as_csv(answer, format_table(answer)))
    assert [row["published"] for row in rows] == [
        f"value={number} dataset=mnist" for number in (0.0039, 0.0035, 0.0025)
    ]


def test_json_has_the_same_records_and_what_they_are_about(answer: ResultTable) -> None:
    told = json.loads(records.as_json(answer, format_table(answer)))
    assert (told["sweep"], told["metric"]) == ("ablation", "test/error")
    assert told["question"].startswith("Do routing iterations")
    assert told["baseline"]["arm"] == "cnn"
    assert told["notes"] == list(format_table(answer).notes)
    first, _, partial = told["fields"]
    assert first["values"] == {"0": 0.1, "1": 0.2, "2": 1 / 3}
    assert first["mean"] == answer.rows[0].values[0].summary.mean
    assert partial["causes"] == [OUT_OF_MEMORY]
    assert partial["mean"] is None
    assert first["published"] == [{"value": 0.0039, "dataset": "mnist"}]


def test_places_without_cells_have_no_record(fill: Filled, tmp_path: Path) -> None:
    chosen = choices.Choices(
        routing="3",
        seeds="1",
        overrides=["dataset=digits,mnist"],
        excludes=["dataset=mnist loss.reconstruction.weight=0.0005"],
    )
    sweep = choices.load_sweep("ablation", chosen)
    answer = table.build_table(sweep, expand.expand_sweep(sweep), Ledger(tmp_path))
    places = [(r["arm"], r["dataset"]) for r in records.table_records(answer, format_table(answer))]
    assert len(places) == 5
    assert places.count(("capsnet", "mnist")) == 1
