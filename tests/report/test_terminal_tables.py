"""The table in a terminal: whole where it fits, else several that do, and nothing is lost."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.measure import Measurement

from capsweep.ledger.ledger import Ledger
from capsweep.report import grid, render, table
from capsweep.report.formatted_table import FormattedTable, format_table
from capsweep.report.table import ResultTable
from capsweep.sweep import choices, expand
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

Filled = Callable[[Point, float], None]


@pytest.fixture
def answer(ablation: tuple[Sweep, list[Point]], fill: Filled, tmp_path: Path) -> ResultTable:
    """Three full rows."""
    sweep, points = ablation
    for number, point in enumerate(points):
        fill(point, 0.01 + 0.001 * number)
    return table.build_table(sweep, points, Ledger(tmp_path))


def shown(answer: ResultTable, written: FormattedTable, width: int) -> list[str]:
    """Each table as text, in a console of that width."""
    texts = []
    for each in render.render_terminal(answer, written, width):
        console = Console(file=StringIO(), width=width)
        console.print(each)
        texts.append(console.file.getvalue())
    return texts


def widest(text: str) -> int:
    """Of its lines, without the blanks at their ends."""
    return max(len(line.rstrip()) for line in text.splitlines())


def test_it_is_one_table_where_that_fits(answer: ResultTable) -> None:
    written = format_table(answer)
    (whole,) = shown(answer, written, 1000)
    (fitting,) = shown(answer, written, widest(whole) + 3)
    assert fitting.split() == whole.split()
    assert len(shown(answer, written, widest(whole) - 3)) == 2


def test_at_eighty_columns_values_stand_beside_published_and_differences_below(
    answer: ResultTable,
) -> None:
    written = format_table(answer)
    values, differences = shown(answer, written, 80)
    assert max(map(widest, (values, differences))) <= 80
    for line in written.lines:
        coordinates = " · ".join(f.text for f in line.fields if f.kind == "coordinate")
        (row,) = (r for r in values.splitlines() if f"{coordinates} " in r)
        assert all(f.text in row for f in line.fields if f.kind in ("value", "published"))
        (row,) = (r for r in differences.splitlines() if f"{coordinates} " in r)
        assert all(f.text in row for f in line.fields if f.kind == "difference")


@pytest.mark.parametrize("width", [60, 80, 100, 120, 150, 200])
def test_no_field_is_lost_or_broken_at_any_width_of_several_data_sets(
    fill: Filled, tmp_path: Path, width: int
) -> None:
    chosen = choices.Choices(routing="3", overrides=["dataset=digits,mnist"])
    sweep = choices.load_sweep("ablation", chosen)
    points = expand.expand_sweep(sweep)
    for number, point in enumerate(points):
        fill(point, 0.01 + 0.001 * number)
    answer = table.build_table(sweep, points, Ledger(tmp_path))
    written = format_table(answer)
    said = "".join(shown(answer, written, width))
    for line in written.lines:
        assert all(f.text in said for f in line.fields if f.kind != "coordinate")


def test_a_width_is_what_the_terminal_takes(answer: ResultTable) -> None:
    written = format_table(answer)
    rows = [[field.text for field in line.fields] for line in written.lines]
    made = grid.grid_terminal(None, written.header, rows)
    console = Console(width=1000)
    taken = Measurement.get(console, console.options, made).maximum
    ours = [
        grid.column_width(name, (row[i] for row in rows)) for i, name in enumerate(written.header)
    ]
    assert taken <= sum(ours) <= taken + 3
