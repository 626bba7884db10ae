"""The figures of a sweep's report: curves by epoch, and cost against what it buys; which are drawn,
of which rows, and why others are not.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from capsweep.report import charts
from capsweep.report.cells import FieldCells, KnownCell, column_name
from capsweep.report.charts import ChartImage, Curve, Mark
from capsweep.report.table import ResultTable
from capsweep.statistics.seeds import list_common_places

MOST_ROWS = 14  # in a figure: the eye does not tell more apart
LAST_STEP = " As it is after the last step of an epoch; equal rows cover each other."
Section = Literal["curves", "cost", "schedules"]
Series = Mapping[int, float]  # a number per epoch


@dataclass(frozen=True)
class ReportFigure:
    """section: of the page; caption: every choice, as text, or why there is no image; stem: of its
    files; alt: for those who do not see it.
    """

    section: Section
    caption: str
    stem: str = ""
    alt: str = ""
    image: ChartImage | None = None


@dataclass(frozen=True)
class FigureColumn:
    """One column of the table. ending: of the names of files; where: in captions."""

    fields: Sequence[FieldCells]
    ending: str
    where: str


@dataclass(frozen=True)
class CurvePlan:
    """What a figure shows. label: of its axis; series: of a cell; note: ends the caption."""

    kind: str
    label: str
    series: Callable[[KnownCell], Series]
    note: str = ""
    section: Section = "curves"


def make_figures(table: ResultTable, fields: Sequence[FieldCells]) -> Iterator[ReportFigure]:
    """Every figure, of each column of the table."""
    table, fields = _choose_rows(table, fields)
    for number in range(len(table.columns)):
        name, ending, where = column_name(table, number), "", ""
        if len(table.columns) > 1:
            slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "column"
            ending, where = f"-{slug}-{number}", f" ({name})"
        column_fields = [field for field in fields if field.column == number]
        column = FigureColumn(column_fields, ending, where)
        for plan in plan_curves(column_fields):
            yield _make_curve_figure(plan, column)
        yield from _make_cost_figures(table, column)


def _choose_rows(
    table: ResultTable, fields: Sequence[FieldCells]
) -> tuple[ResultTable, Sequence[FieldCells]]:
    """The rows that are drawn, in the order of the table and numbered anew: of too many the
    baseline and the best by the metric.
    """
    sign = -1 if table.measure.higher_is_better else 1

    def rank_row(row: int) -> tuple[bool, float]:
        means = [sign * g.summary.mean for g in table.rows[row].values if g and g.summary]
        return row != table.baseline, min(means, default=math.inf)

    drawn = sorted(sorted(range(len(table.rows)), key=rank_row)[:MOST_ROWS])
    rows = tuple(table.rows[row] for row in drawn)
    fields = [replace(f, row=drawn.index(f.row)) for f in fields if f.row in drawn]
    return replace(table, rows=rows, baseline=None), fields


def describe_rows(table: ResultTable) -> str:
    """How a row is named in figures, and which rows are left out."""
    text = f"Rows are named {' · '.join(table.sweep.rows)}."
    if len(table.rows) > MOST_ROWS:
        best = "the best" if table.baseline is None else "the baseline and the best"
        text += f" Drawn are {MOST_ROWS} of the {len(table.rows)} rows: {best} by "
        text += f"{table.sweep.metric}; make report with ARMS=... or pinned axes chooses others."
    return text


def plan_curves(fields: Sequence[FieldCells]) -> list[CurvePlan]:
    """The curves of a column: `val/NAME` where all rows of finished cells have it, else
    `train/NAME`.
    """
    rows = [row for field in fields for cell in field.counted_cells for row in cell.rows]

    def choose_split(name: str) -> str:
        is_validated = bool(rows) and all(f"val/{name}" in row for row in rows)
        return f"{'val' if is_validated else 'train'}/{name}"

    loss, error = choose_split("loss"), choose_split("error")
    note = " An epoch's time includes its validation."
    return [
        CurvePlan("loss", loss, read_rows(loss)),
        CurvePlan("error", f"{error} (%)", read_rows(error, 100)),
        CurvePlan("throughput", "training images / s", read_throughput, note),
        CurvePlan("learning-rate", "learning rate", read_rows("lr"), LAST_STEP, "schedules"),
        CurvePlan("margin", "margin of the loss", read_rows("margin"), LAST_STEP, "schedules"),
    ]


def read_rows(key: str, factor: float = 1) -> Callable[[KnownCell], Series]:
    """The number at a key of a cell's rows."""

    def read_cell(cell: KnownCell) -> Series:
        values = {row["epoch"]: row.get(key) for row in cell.rows}
        return {epoch: factor * v for epoch, v in values.items() if isinstance(v, (int, float))}

    return read_cell


def read_throughput(cell: KnownCell) -> Series:
    """Training images a second of each epoch; empty where the result does not tell how many."""
    result, images = cell.result, 0.0
    if result.get("epochs") and result.keys() >= {"images_per_second", "seconds"}:
        images = result["images_per_second"] * result["seconds"]["fit"] / result["epochs"]
    seconds = read_rows("seconds")(cell)
    return {epoch: images / s for epoch, s in seconds.items() if s > 0} if images else {}


def average_seeds(name: str, row: int, seeds: Sequence[Series]) -> list[Curve]:
    """The curve of some seeds; none where they have no epoch in common.

    An epoch counts when every seed has it, as a finite number.
    """
    values = {e: [series[e] for series in seeds] for e in list_common_places(seeds)}
    values = {e: numbers for e, numbers in values.items() if all(map(math.isfinite, numbers))}
    if not values:
        return []
    lows, highs = tuple(map(min, values.values())), tuple(map(max, values.values()))
    means = tuple(  # of equal numbers, it may be rounded out of them
        min(max(fmean(numbers), low), high)
        for numbers, low, high in zip(values.values(), lows, highs, strict=True)
    )
    epochs = tuple(epoch + 1 for epoch in values)
    return [Curve(name, row, epochs, means, lows, highs, len(seeds))]


def _make_curve_figure(plan: CurvePlan, column: FigureColumn) -> ReportFigure:
    curves = []
    for field in column.fields:
        seeds = [series for cell in field.counted_cells if (series := plan.series(cell))]
        curves += average_seeds(field.name, field.row, seeds)
    if not curves:
        absent = f"{plan.label}{column.where}: no finished cell has it by epoch."
        return ReportFigure(plan.section, absent)
    image = charts.draw_once(charts.draw_curves, plan.label, curves)
    names = "; ".join(curve.name for curve in curves)
    alt = f"Curves of {plan.label} by epoch{column.where}, for {names}."
    fewest, most = (choose(curve.seeds for curve in curves) for choose in (min, max))
    seeds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    caption = (
        f"{plan.label} by epoch{column.where}: mean over the seeds that have it ({seeds}), in the "
        f"epochs that all of them have; band from the lowest seed to the highest.{plan.note}"
    )
    return ReportFigure(plan.section, caption, f"{plan.kind}{column.ending}", alt, image)


def is_timed_on_gpus(fields: Sequence[FieldCells]) -> bool:
    """Whether every finished cell has hours of an accelerator; 0 where it has none."""
    cells = [cell for field in fields for cell in field.counted_cells]
    return bool(cells) and all(cell.result.get("gpu_hours") for cell in cells)


def collect_marks(
    table: ResultTable, fields: Sequence[FieldCells], read_cost: Callable[[Any], float | None]
) -> list[Mark]:
    """Of the complete fields whose results all tell their cost: its mean over the seeds."""
    marks = []
    for field in fields:
        group = table.rows[field.row].values[field.column]
        costs = [read_cost(cell.result) for cell in field.counted_cells]
        known_costs = [cost for cost in costs if cost is not None]
        if group and group.full_summary and len(known_costs) == len(costs):
            summary = group.full_summary
            marks.append(Mark(field.name, field.row, fmean(known_costs), summary.mean, summary.std))
    return marks


def _make_cost_figures(table: ResultTable, column: FigureColumn) -> Iterator[ReportFigure]:
    """A figure of the time and one of the parameters, of the complete rows."""
    metric, on_gpus = table.sweep.metric, is_timed_on_gpus(column.fields)

    def read_minutes(result: Mapping[str, Any]) -> float | None:
        seconds = result.get("seconds", {}).get("total")
        return 60 * result["gpu_hours"] if on_gpus else seconds and seconds / 60

    clock = "device" if on_gpus else "wall"
    time = f"the {clock} time of a cell, training and test, on {_name_hardware(column.fields)}"
    for kind, label, what, read_cost in (
        ("time", f"{clock} minutes of a cell", time, read_minutes),
        ("parameters", "parameters", "the parameters", lambda result: result.get("parameters")),
    ):
        marks = collect_marks(table, column.fields, read_cost)
        caption = f"{metric}{column.where} against {what}"
        if not marks:
            yield ReportFigure("cost", f"{caption}: no row has it of all of its seeds.")
            continue
        image = charts.draw_once(charts.draw_marks, label, metric, marks)
        caption += ": mean over seeds, bars of one standard deviation."
        if incomplete := len(column.fields) - len(marks):
            caption += f" Rows that lack seeds or their cost are left out: {incomplete}."
        alt = f"{metric} against cost{column.where}, for {'; '.join(m.name for m in marks)}."
        yield ReportFigure("cost", caption, f"cost-{kind}{column.ending}", alt, image)


def _name_hardware(fields: Sequence[FieldCells]) -> str:
    cells = [cell for field in fields for cell in field.counted_cells]
    names = list(dict.fromkeys(cell.hardware for cell in cells if cell.hardware))
    mixed = " (different hardware: its times do not compare)" if len(names) > 1 else ""
    return (", ".join(names) or "hardware that nobody wrote down") + mixed
