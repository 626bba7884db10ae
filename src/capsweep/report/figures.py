"""The figures of a sweep's report: the table, curves by epoch, and the metric against cost.

This module decides which rows are drawn and writes the captions; `charts` draws.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from capsweep.report import charts
from capsweep.report.cells import TableCell
from capsweep.report.charts import Curve, Mark, Panel, PanelRow
from capsweep.report.table import CellGroup, ResultTable
from capsweep.statistics.seeds import list_common_steps

MOST_ROWS = 14  # most rows in a figure; readers cannot distinguish more curves
MOST_TABLE_ROWS = 40  # most rows in the figure of a table
MOST_ACROSS = 3  # most panels side by side in the figure of a table
Series = Mapping[int, float]  # a number per epoch


@dataclass(frozen=True)
class ReportFigure:
    """A figure of a report's page."""

    caption: str  # what is shown and how it was computed, or why there is no image
    stem: str  # name of the figure's file, without the ending
    names: Sequence[str] = ()  # names of the drawn rows
    image: bytes | None = None  # the PNG; None if nothing can be drawn
    narrow: bytes | None = None  # a PNG for narrow screens; None if `image` fits them


def make_figures(table: ResultTable) -> Iterator[ReportFigure]:
    """Yield the figure of the table, then the figures of loss, error and cost for each column."""
    whole, several = make_table_figure(table), len(table.columns) > 1
    yield replace(whole, narrow=make_table_figure(table, 1).image) if several else whole
    groups = choose_rows(table)
    for number in range(len(table.columns)):
        name, ending, where = table.name_column(number), "", ""
        if several:
            slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "column"
            ending, where = f"-{slug}-{number}", f" ({name})"
        column = [group for group in groups if group.column == number]
        cost_figure = _make_cost_figure(table.sweep.metric, column, where)
        for figure in (*_make_curve_figures(column, where), cost_figure):
            yield replace(figure, stem=f"{figure.stem}{ending}")


def make_table_figure(table: ResultTable, most_across: int = MOST_ACROSS) -> ReportFigure:
    """Draw a table as a figure with a panel for each column.

    A row is drawn if at least one seed has the metric. Its mean is drawn if all seeds have the
    metric. If no row has a result, or if more than MOST_TABLE_ROWS rows have results, the figure
    has no image.

    Args:
        table: The table.
        most_across: The largest number of panels side by side; 1 for narrow screens.
    """
    stem, groups = "table", [group for group in table.groups if group.summary]
    names = {group.row: group.name for group in groups}
    caption = f"{table.sweep.metric}: mean over seeds and its 95 % interval"
    if not 0 < len(names) <= MOST_TABLE_ROWS:
        room = f"{len(names)} rows have results, and a figure has room for {MOST_TABLE_ROWS}"
        return ReportFigure(f"{caption}: {room}.", stem)
    if table.baseline in names:
        caption += f"; the dotted line is the mean of {names[table.baseline]}"
    places = {row: place for place, row in enumerate(sorted(names))}
    columns = sorted({group.column for group in groups})
    panels = [_make_panel(table, [g for g in groups if g.column == n], places) for n in columns]
    labels, keys = [names[row] for row in places], " · ".join(table.sweep.rows)
    numbers = table.sweep.metric, keys, labels, panels, most_across
    image = charts.draw_once(charts.draw_panels, *numbers)
    return ReportFigure(f"{caption}.", stem, labels, image)


def _make_panel(
    table: ResultTable, groups: Sequence[CellGroup], places: Mapping[int, int]
) -> Panel:
    """Make the panel of a column from its fields; `places` has the place of each row."""
    column, rows, baseline = groups[0].column, [], None
    at = dict(zip(table.sweep.columns, table.columns[column], strict=True))
    for group in groups:
        published = [
            number
            for number in table.rows[group.row].published
            if number.place
            in ([], [str(at[key]) for key in table.sweep.columns if key in number.of])
        ]
        marks = {charts.SEED: [*group.by_seed.values()]}
        for number in published:
            kind = charts.OTHER if number.differs else charts.PUBLISHED
            marks.setdefault(kind, []).append(number.value)
        mean = None
        if (summary := group.full_summary) is not None:
            mean = (summary.mean, *(summary.interval or (summary.mean, summary.mean)))
            baseline = summary.mean if group.row == table.baseline else baseline
        rows.append(PanelRow(places[group.row], mean, marks))
    title = table.name_column(column) if len(table.columns) > 1 else ""
    return Panel(title, tuple(rows), baseline)


def choose_rows(table: ResultTable) -> list[CellGroup]:
    """Choose the rows to draw: all, or the baseline and the best rows if there are too many.

    Returns:
        The fields of the chosen rows, in the order of the table. The `row` of each field is changed
        to the index of its row among the chosen rows.
    """
    sign = -1 if table.measure.higher_is_better else 1

    def rank_row(row: int) -> tuple[bool, float]:
        means = [sign * g.summary.mean for g in table.rows[row].values if g and g.summary]
        return row != table.baseline, min(means, default=math.inf)

    drawn = sorted(sorted(range(len(table.rows)), key=rank_row)[:MOST_ROWS])
    return [replace(g, row=drawn.index(g.row)) for g in table.groups if g.row in drawn]


def describe_rows(table: ResultTable) -> str:
    """Return a note on the names of rows in the figures, and on rows that are not drawn."""
    text = f"Rows are named {' · '.join(table.sweep.rows)}. Time includes validation."
    if len(table.rows) > MOST_ROWS:
        best = "the best" if table.baseline is None else "the baseline and the best"
        text += f" {MOST_ROWS} of the {len(table.rows)} rows are drawn: {best} by "
        text += f"{table.sweep.metric}. For other rows: make report with ARMS=... or single values."
    return text


def choose_split(name: str, fields: Sequence[CellGroup]) -> str:
    """Return `val/NAME` if all epochs of the finished cells have this metric, else `train/NAME`."""
    rows = [row for field in fields for cell in field.finished.values() for row in cell.rows]
    is_validated = bool(rows) and all(f"val/{name}" in row for row in rows)
    return f"{'val' if is_validated else 'train'}/{name}"


def read_rows(cell: TableCell, key: str, factor: float = 1) -> Series:
    """Return a metric of a cell by epoch (counted from 0); each value is multiplied by `factor`."""
    values = {row["epoch"]: row.get(key) for row in cell.rows}
    return {epoch: factor * v for epoch, v in values.items() if isinstance(v, (int, float))}


def average_seeds(name: str, row: int, seeds: Sequence[Series]) -> list[Curve]:
    """Compute, for each epoch, the mean, the lowest and the highest value of some seeds.

    An epoch is used only if every seed has a finite value for this epoch.

    Args:
        name: The name of the curve.
        row: The index of the curve's row. The index decides the style of the curve.
        seeds: The metric by epoch, for each seed.

    Returns:
        A list with one curve; an empty list if no epoch can be used.
    """
    values = {e: [series[e] for series in seeds] for e in list_common_steps(seeds)}
    values = {e: numbers for e, numbers in values.items() if all(map(math.isfinite, numbers))}
    if not values:
        return []
    means, lows, highs = (tuple(map(each, values.values())) for each in (fmean, min, max))
    epochs = tuple(epoch + 1 for epoch in values)
    return [Curve(name, row, epochs, means, lows, highs)]


def _make_curve_figures(fields: Sequence[CellGroup], where: str) -> Iterator[ReportFigure]:
    """Yield the figures of loss and error by epoch; `where` names the column in the captions."""
    for stem, factor, unit in (("loss", 1, ""), ("error", 100, " (%)")):
        key = choose_split(stem, fields)
        curves: list[Curve] = []
        for field in fields:
            seeds = [s for cell in field.finished.values() if (s := read_rows(cell, key, factor))]
            curves += average_seeds(field.name, field.row, seeds)
        if not curves:
            yield ReportFigure(f"{key}{unit}{where}: no finished cell recorded it by epoch.", stem)
            continue
        yield ReportFigure(
            f"{key}{unit} by epoch{where}: mean over seeds, in the epochs that all of them have; "
            "the band reaches from the lowest seed to the highest.",
            stem,
            [curve.name for curve in curves],
            charts.draw_once(charts.draw_curves, f"{key}{unit}", curves),
        )


def collect_marks(
    fields: Sequence[CellGroup], read_cost: Callable[[Any], float | None]
) -> list[Mark]:
    """Make a mark for each table field if all seeds of the field have the metric and a cost.

    Args:
        fields: The fields of one column of a table.
        read_cost: A function that returns the cost in a cell's result, or None if the result has
            no cost.

    Returns:
        The marks. The cost and the metric of a mark are means over the seeds.
    """
    marks = []
    for field in fields:
        costs = [read_cost(cell.result) for cell in field.finished.values()]
        known_costs = [cost for cost in costs if cost is not None]
        if (summary := field.full_summary) and len(known_costs) == len(costs):
            marks.append(Mark(field.name, field.row, fmean(known_costs), summary.mean, summary.std))
    return marks


def _make_cost_figure(metric: str, fields: Sequence[CellGroup], where: str) -> ReportFigure:
    """Draw the metric against the time of a cell.

    A row is drawn if all of its seeds have the metric and a time. The time is device time if every
    finished cell recorded GPU hours, else wall time.
    """
    cells = [cell for field in fields for cell in field.finished.values()]
    on_gpus = bool(cells) and all(cell.result.get("gpu_hours") for cell in cells)

    def read_minutes(result: Mapping[str, Any]) -> float | None:
        seconds = result.get("seconds", {}).get("total")
        return 60 * result["gpu_hours"] if on_gpus else seconds and seconds / 60

    clock, stem = "device" if on_gpus else "wall", "cost-time"
    hardware = ", ".join(sorted({cell.hardware for cell in cells}))
    caption = (
        f"{metric}{where} against the {clock} time of a cell, training and test, on {hardware}"
    )
    marks = collect_marks(fields, read_minutes)
    if not marks:
        return ReportFigure(f"{caption}: no row has the times of all of its seeds.", stem)
    caption += ": mean over seeds, bars of one standard deviation."
    if incomplete := len(fields) - len(marks):
        caption += f" Rows that lack seeds or their cost are left out: {incomplete}."
    image = charts.draw_once(charts.draw_marks, f"{clock} minutes of a cell", metric, marks)
    return ReportFigure(caption, stem, [mark.name for mark in marks], image)
