"""The figures of a sweep's report: the table, the time of its cells, and curves by epoch.

This module decides which rows are drawn and writes the captions; `charts` draws.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from capsweep.report import charts
from capsweep.report.cells import TableCell
from capsweep.report.charts import Curve, Panel, PanelRow
from capsweep.report.table import CellGroup, ResultTable
from capsweep.statistics import metric_format
from capsweep.statistics.seeds import list_common_steps, summarise_values

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
    """Yield the figures of the table and of time, then loss and error of each column by epoch."""
    whole = make_table_figure(table)
    is_broad = len(table.columns) > 1
    yield replace(whole, narrow=make_table_figure(table, 1).image) if is_broad else whole
    yield _make_cost_figure(table)
    groups = choose_rows(table)
    for number, name in enumerate(table.titles):
        ending, where = "", ""
        if name:
            slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "column"
            ending, where = f"-{slug}-{number}", f" ({name})"
        column = [group for group in groups if group.column == number]
        for figure in _make_curve_figures(column, where):
            yield replace(figure, stem=f"{figure.stem}{ending}")


def make_table_figure(table: ResultTable, most_across: int = MOST_ACROSS) -> ReportFigure:
    """Draw the metric of each row, with a panel for each column, and published numbers.

    Args:
        table: The table.
        most_across: The largest number of panels side by side; 1 for narrow screens.
    """
    return _draw_rows(table, "table", table.sweep.metric, lambda g: g.by_seed, most_across)


def _make_cost_figure(table: ResultTable) -> ReportFigure:
    """Draw the time of a cell of each row, with a panel for each column.

    The time is device time if every finished cell recorded GPU hours, else wall time.
    """
    cells = [cell for cell in table.cells if cell.is_finished]
    on_gpus = bool(cells) and all(cell.result.get("gpu_hours") for cell in cells)

    def read_minutes(group: CellGroup) -> dict[int, float]:
        results = {seed: cell.result for seed, cell in group.finished.items()}
        if on_gpus:
            return {seed: 60 * result["gpu_hours"] for seed, result in results.items()}
        totals = {seed: result.get("seconds", {}).get("total") for seed, result in results.items()}
        return {seed: total / 60 for seed, total in totals.items() if total is not None}

    label = f"{'device' if on_gpus else 'wall'} minutes of a cell"
    drawn = _draw_rows(table, "cost-time", label, read_minutes, 1)
    hardware = ", ".join(sorted({cell.hardware for cell in cells})) or "no hardware"
    return replace(drawn, caption=f"{drawn.caption} Training and test, on {hardware}.")


def _draw_rows(
    table: ResultTable, stem: str, label: str, read: Callable[[CellGroup], Series], most_across: int
) -> ReportFigure:
    """Draw a number of each row: a mark for each seed, the mean and its interval.

    The mean is drawn if all seeds have the number. If no row has a number, or if more than
    MOST_TABLE_ROWS rows have one, the figure has no image.

    Args:
        table: The table.
        stem: The name of the figure's file, without the ending.
        label: What the number is.
        read: A function that returns the number by seed, for a field of the table.
        most_across: The largest number of panels side by side.
    """
    drawn = [(group, values) for group in table.groups if (values := read(group))]
    names = {group.row: group.name for group, _ in drawn}
    caption = f"{label}: mean over seeds and its 95 % interval"
    if not 0 < len(names) <= MOST_TABLE_ROWS:
        room = f"{len(names)} rows have results, and a figure has room for {MOST_TABLE_ROWS}"
        return ReportFigure(f"{caption}: {room}.", stem)
    if table.baseline in names:
        caption += f"; the dotted line is the mean of {names[table.baseline]}"
    places = {row: place for place, row in enumerate(names)}
    rows: dict[int, dict[int, PanelRow]] = {}
    for group, values in drawn:
        row = _make_row(table, group, label, list(values.values()))
        rows.setdefault(group.column, {})[places[group.row]] = row
    baseline = None if table.baseline is None else places.get(table.baseline)
    panels = [Panel(table.titles[n], rows[n], baseline) for n in sorted(rows)]
    labels, keys = [*names.values()], " · ".join(table.sweep.rows)
    image = charts.draw_once(charts.draw_panels, label, keys, labels, panels, most_across)
    return ReportFigure(f"{caption}.", stem, labels, image)


def _make_row(
    table: ResultTable, group: CellGroup, label: str, values: Sequence[float]
) -> PanelRow:
    """Make the row of a field in a panel; the row of a metric has published numbers."""
    measure, mean = metric_format.measure_of(label), None
    if len(values) == len(group.cells):
        summary = summarise_values(values, measure.low, measure.high)
        mean = (summary.mean, *(summary.interval or (summary.mean, summary.mean)))
    at = dict(zip(table.sweep.columns, table.columns[group.column], strict=True))
    marks = {charts.SEED: values}
    for number in table.rows[group.row].published if label == table.sweep.metric else ():
        place = [str(value) for key, value in at.items() if key in number.of]
        if number.place in ([], place):
            kind = charts.OTHER if number.differs else charts.PUBLISHED
            marks[kind] = [*marks.get(kind, ()), number.value]
    return PanelRow(mean, marks)


def choose_rows(table: ResultTable) -> list[CellGroup]:
    """Choose the rows to draw: all, or the baseline and the best rows if there are too many.

    Returns:
        The fields of the chosen rows, in the order of the table. The `row` of each field is changed
        to the index of its row among the chosen rows.
    """
    sign = -1 if table.measure.higher_is_better else 1

    def rank_row(row: int) -> tuple[bool, float]:
        means = [sign * g.summary.mean for g in table.rows[row].values if g.summary]
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
