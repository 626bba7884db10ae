"""The figures of a sweep's report: which are drawn, of which rows, and why others are not."""

import re
from collections.abc import Iterator, Mapping, Sequence

from capsweep import palette
from capsweep.palette import Style
from capsweep.report import cost_figure, curve_figures
from capsweep.report.cells import FieldCells, column_name
from capsweep.report.charts import Drawn, NotDrawn
from capsweep.report.cost_figure import collect_costs
from capsweep.report.table import ResultTable

KINDS = (*curve_figures.KINDS, *cost_figure.KINDS)  # what their files' names begin with
MOST = 14  # rows in a figure: the eye does not tell more apart


def draw_figures(table: ResultTable, fields: Sequence[FieldCells]) -> list[Drawn | NotDrawn]:
    """Every figure, of each column of the table."""
    styles = _choose_styles(table)
    return [
        figure
        for c in range(len(table.columns))
        for figure in _draw_column(table, fields, styles, c)
    ]


def on_rows(table: ResultTable) -> str:
    """How a row is named in figures, and which rows are left out."""
    names = " · ".join(table.sweep.rows)
    told = f"Rows are named {names}."
    if len(table.rows) > MOST:
        told += (
            f" Drawn are {MOST} of the {len(table.rows)} rows: the baseline and the best by "
            f"{table.sweep.metric}; make report with ARMS=... or pinned axes chooses others."
        )
    return told


def _draw_column(
    table: ResultTable, fields: Sequence[FieldCells], styles: Mapping[int, Style], column: int
) -> Iterator[Drawn | NotDrawn]:
    here = [field for field in fields if field.column == column]
    name = column_name(table, column)
    several = len(table.columns) > 1
    ending = f"-{_make_slug(name)}-{column}" if several else ""
    where = f" ({name})" if several else ""
    for plan in curve_figures.plan_curves(here):
        yield curve_figures.draw_curves(plan, here, styles, f"{plan.name}{ending}", where)
    yield from cost_figure.draw_costs(
        collect_costs(table, here), table.sweep.metric, styles, ending, where
    )


def _choose_styles(table: ResultTable) -> dict[int, Style]:
    """Of the rows that are drawn, in the order of the table."""
    rows = range(len(table.rows))
    if len(rows) > MOST:
        best = sorted(rows, key=lambda row: _rank_row(table, row))
        first = [] if table.baseline is None else [table.baseline]
        rows = sorted(dict.fromkeys([*first, *best][:MOST]))
    return {row: palette.style(place) for place, row in enumerate(rows)}


def _rank_row(table: ResultTable, row: int) -> float:
    """Small for a good row: its best mean over the columns; infinite where there is none."""
    sign = -1 if table.measure.higher_is_better else 1
    means = [sign * v.summary.mean for v in table.rows[row].values if v and v.summary]
    return min(means, default=float("inf"))


def _make_slug(name: str) -> str:
    """A part of a file's name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "column"
