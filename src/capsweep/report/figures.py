"""The figures of a sweep's report: which are drawn, of which rows, and why others are not."""

import re
from collections.abc import Iterator, Mapping, Sequence

from capsweep.report import canvas, cost_figure, curve_figures
from capsweep.report.canvas import Style
from capsweep.report.cells import FieldCells, column_name
from capsweep.report.costs import costs
from capsweep.report.figure import Drawn, NotDrawn
from capsweep.report.table import Table

KINDS = (*curve_figures.KINDS, *cost_figure.KINDS)  # what their files' names begin with
MOST = 14  # rows in a figure: the eye does not tell more apart


def draw(table: Table, fields: Sequence[FieldCells]) -> list[Drawn | NotDrawn]:
    """Every figure, of each column of the table."""
    styles = _styles(table)
    return [
        figure for c in range(len(table.columns)) for figure in _column(table, fields, styles, c)
    ]


def on_rows(table: Table) -> str:
    """How a row is named in figures, and which rows are left out."""
    names = " · ".join(table.sweep.rows)
    told = f"Rows are named {names}."
    if len(table.rows) > MOST:
        told += (
            f" Drawn are {MOST} of the {len(table.rows)} rows: the baseline and the best by "
            f"{table.sweep.metric}; make report with ARMS=... or pinned axes chooses others."
        )
    return told


def _column(
    table: Table, fields: Sequence[FieldCells], styles: Mapping[int, Style], column: int
) -> Iterator[Drawn | NotDrawn]:
    here = [field for field in fields if field.column == column]
    name = column_name(table, column)
    several = len(table.columns) > 1
    ending = f"-{_slug(name)}-{column}" if several else ""
    where = f" ({name})" if several else ""
    for plan in curve_figures.plans(here):
        yield curve_figures.draw(plan, here, styles, f"{plan.name}{ending}", where)
    yield from cost_figure.draw(costs(table, here), table.sweep.metric, styles, ending, where)


def _styles(table: Table) -> dict[int, Style]:
    """Of the rows that are drawn, in the order of the table."""
    rows = range(len(table.rows))
    if len(rows) > MOST:
        best = sorted(rows, key=lambda row: _rank(table, row))
        first = [] if table.baseline is None else [table.baseline]
        rows = sorted(dict.fromkeys([*first, *best][:MOST]))
    return {row: canvas.style(place) for place, row in enumerate(rows)}


def _rank(table: Table, row: int) -> float:
    """Small for a good row: its best mean over the columns; infinite where there is none."""
    sign = -1 if table.measure.higher_is_better else 1
    means = [sign * v.summary.mean for v in table.rows[row].values if v and v.summary]
    return min(means, default=float("inf"))


def _slug(name: str) -> str:
    """A part of a file's name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "column"
