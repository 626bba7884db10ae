"""The figures of a sweep's report: curves by epoch, and cost against what it buys; which are drawn,
of which rows, and why others are not.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from capsweep import palette
from capsweep.palette import Style
from capsweep.report import charts
from capsweep.report.cells import FieldCells, KnownCell, column_name
from capsweep.report.charts import ChartImage, Curve, Mark
from capsweep.report.table import ResultTable
from capsweep.statistics.seeds import list_common_places

KINDS = (  # what the names of their files begin with
    *("loss", "error", "throughput", "learning-rate", "margin"),
    *("cost-time", "cost-parameters"),
)
MOST_ROWS = 14  # in a figure: the eye does not tell more apart
TIME_UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
COUNT_UNITS = (("million ", 1e6), ("thousand ", 1e3), ("", 1.0))
LAST_STEP = "As it is after the last step of an epoch. "
Series = Mapping[int, float]  # a number per epoch


@dataclass(frozen=True)
class ReportFigure:
    """section: of the page; caption: every choice, as text, or why there is no image; stem: of its
    files; alt: for those who do not see it.
    """

    section: Literal["curves", "cost", "schedules"]
    caption: str
    stem: str = ""
    alt: str = ""
    image: ChartImage | None = None


@dataclass(frozen=True)
class FigureColumn:
    """One column of the table. styles: of the rows that are drawn; ending: of the names of files;
    where: in captions.
    """

    fields: Sequence[FieldCells]
    styles: Mapping[int, Style]
    ending: str
    where: str


@dataclass(frozen=True)
class CurvePlan:
    """What a figure shows. label: of its axis; series: of a cell; factor: of its numbers; absent:
    why it may not be there; note: after the caption; is_schedule: equal curves are drawn once.
    """

    kind: str
    label: str
    series: Callable[[KnownCell], Series]
    absent: str
    note: str = ""
    factor: float = 1.0
    is_schedule: bool = False


@dataclass(frozen=True)
class Cost:
    """A complete field: seconds of a cell (mean over its seeds; None where a result does not tell),
    parameters, and mean and standard deviation of the table's metric.
    """

    name: str
    row: int
    seconds: float | None
    parameters: int | None
    mean: float
    std: float | None


def make_figures(table: ResultTable, fields: Sequence[FieldCells]) -> Iterator[ReportFigure]:
    """Every figure, of each column of the table."""
    styles = _choose_styles(table)
    for number in range(len(table.columns)):
        name, ending, where = column_name(table, number), "", ""
        if len(table.columns) > 1:
            slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "column"
            ending, where = f"-{slug}-{number}", f" ({name})"
        own = [field for field in fields if field.column == number]
        column = FigureColumn(own, styles, ending, where)
        for plan in plan_curves(own):
            yield _make_curve_figure(plan, column)
        yield from _make_cost_figures(table, column)


def describe_rows(table: ResultTable) -> str:
    """How a row is named in figures, and which rows are left out."""
    text = f"Rows are named {' · '.join(table.sweep.rows)}."
    if len(table.rows) > MOST_ROWS:
        text += (
            f" Drawn are {MOST_ROWS} of the {len(table.rows)} rows: the baseline and the best by "
            f"{table.sweep.metric}; make report with ARMS=... or pinned axes chooses others."
        )
    return text


def _choose_styles(table: ResultTable) -> dict[int, Style]:
    """Of the rows that are drawn, in the order of the table."""
    rows = range(len(table.rows))
    if len(rows) > MOST_ROWS:
        best = sorted(rows, key=lambda row: _rank_row(table, row))
        first = [] if table.baseline is None else [table.baseline]
        rows = sorted(dict.fromkeys([*first, *best][:MOST_ROWS]))
    return {row: palette.choose_style(place) for place, row in enumerate(rows)}


def _rank_row(table: ResultTable, row: int) -> float:
    """Small for a good row: its best mean over the columns; infinite where there is none."""
    sign = -1 if table.measure.higher_is_better else 1
    means = [sign * v.summary.mean for v in table.rows[row].values if v and v.summary]
    return min(means, default=float("inf"))


def plan_curves(fields: Sequence[FieldCells]) -> list[CurvePlan]:
    """The curves of a column: `val/NAME` where all rows of finished cells have it, else
    `train/NAME`.
    """
    rows = [row for field in fields for cell in field.counted_cells for row in cell.rows]

    def choose_split(name: str) -> str:
        is_validated = bool(rows) and all(f"val/{name}" in row for row in rows)
        return f"{'val' if is_validated else 'train'}/{name}"

    loss, error = choose_split("loss"), choose_split("error")
    absent = "no finished cell has {} by epoch"
    no_time = "no finished cell tells its images a second and the seconds of its epochs"
    schedules = (
        ("learning-rate", "learning rate", "lr", absent.format("its learning rate")),
        ("margin", "margin of the loss", "margin", "no finished cell tells a margin that grows"),
    )
    note = "An epoch's time includes its validation. "
    return [
        CurvePlan("loss", loss, read_rows(loss), absent.format(loss)),
        CurvePlan("error", f"{error} (%)", read_rows(error), absent.format(error), factor=100.0),
        CurvePlan("throughput", "training images / s", read_throughput, no_time, note),
        *(
            CurvePlan(kind, label, read_rows(key), why, LAST_STEP, is_schedule=True)
            for kind, label, key, why in schedules
        ),
    ]


def read_rows(key: str) -> Callable[[KnownCell], Series]:
    """The number at a key of a cell's rows."""
    return lambda cell: {row["epoch"]: row[key] for row in cell.rows if _is_number(row.get(key))}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def read_throughput(cell: KnownCell) -> Series:
    """Training images a second of each epoch; empty where the result does not tell how many."""
    result, images = cell.result, 0.0
    if result.get("epochs") and result.keys() >= {"images_per_second", "seconds"}:
        images = result["images_per_second"] * result["seconds"]["fit"] / result["epochs"]
    seconds = read_rows("seconds")(cell)
    return {epoch: images / s for epoch, s in seconds.items() if s > 0} if images else {}


def collect_curves(
    fields: Sequence[FieldCells], series: Callable[[KnownCell], Series]
) -> list[Curve]:
    """A curve for each field of a column of which finished cells have the series."""
    by_field = [(field, [s for c in field.counted_cells if (s := series(c))]) for field in fields]
    curves = (average_seeds(field.name, field.row, seeds) for field, seeds in by_field)
    return [curve for curve in curves if curve is not None]


def average_seeds(name: str, row: int, seeds: Sequence[Series]) -> Curve | None:
    """The curve of some seeds; None where they have no epoch in common.

    An epoch counts when every seed has it, as a finite number.
    """
    values = {e: [series[e] for series in seeds] for e in list_common_places(seeds)}
    values = {e: numbers for e, numbers in values.items() if all(map(math.isfinite, numbers))}
    if not values:
        return None
    lows, highs = tuple(map(min, values.values())), tuple(map(max, values.values()))
    means = tuple(  # of equal numbers, it may be rounded out of them
        min(max(fmean(numbers), low), high)
        for numbers, low, high in zip(values.values(), lows, highs, strict=True)
    )
    lengths = [len(series) for series in seeds]
    epochs = tuple(epoch + 1 for epoch in values)
    return Curve(name, row, epochs, means, lows, highs, len(seeds), (min(lengths), max(lengths)))


def group_equal_curves(curves: Sequence[Curve]) -> list[list[Curve]]:
    """Curves of the same numbers together."""
    groups: dict[Any, list[Curve]] = {}
    for curve in curves:
        groups.setdefault((curve.epochs, curve.mean, curve.low, curve.high), []).append(curve)
    return list(groups.values())


def _make_curve_figure(plan: CurvePlan, column: FigureColumn) -> ReportFigure:
    section = "schedules" if plan.is_schedule else "curves"
    drawn = [field for field in column.fields if field.row in column.styles]
    curves = collect_curves(drawn, plan.series)
    if not curves:
        return ReportFigure(section, f"{plan.label}{column.where}: {plan.absent}.")
    groups = group_equal_curves(curves) if plan.is_schedule else [[curve] for curve in curves]
    names = [_name_group(group, len(column.styles)) for group in groups]
    lines = [
        (group[0], column.styles[group[0].row], name)
        for group, name in zip(groups, names, strict=True)
    ]
    image = charts.draw_once(charts.draw_curves, plan.label, plan.factor, lines, curves)
    alt = f"Curves of {plan.label} by epoch{column.where}, for {'; '.join(names)}."
    caption = _curve_caption(plan, column, curves)
    return ReportFigure(section, caption, f"{plan.kind}{column.ending}", alt, image)


def _name_group(group: Sequence[Curve], total: int) -> str:
    names = [curve.name for curve in group]
    if 1 < len(names) == total:
        return "all rows"
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _curve_caption(plan: CurvePlan, column: FigureColumn, curves: Sequence[Curve]) -> str:
    fewest, most = (choose(curve.seeds for curve in curves) for choose in (min, max))
    seeds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    text = f"{plan.label} by epoch{column.where}: mean over seeds ({seeds}), band from the lowest "
    text += f"seed to the highest. {plan.note}"
    for curve in curves:
        shortest, longest = curve.lengths
        if shortest != longest or len(curve.epochs) < shortest:
            text += f"{curve.name}: its seeds have {shortest} to {longest} epochs, shown are those "
            text += "that all have. "
    finished = {field.row: len(field.counted_cells) for field in column.fields}
    for curve in curves:
        if missing := finished[curve.row] - curve.seeds:
            text += f"{curve.name}: {missing} of its finished cells have no such numbers. "
    return text.strip()


def is_timed_on_gpus(fields: Sequence[FieldCells]) -> bool:
    """Whether every finished cell has hours of an accelerator; 0 where it has none."""
    cells = [cell for field in fields for cell in field.counted_cells]
    return bool(cells) and all(cell.result.get("gpu_hours") for cell in cells)


def collect_costs(table: ResultTable, fields: Sequence[FieldCells]) -> list[Cost]:
    """Of the complete fields among those of one column."""
    on_gpus, costs = is_timed_on_gpus(fields), []
    for field in fields:
        group = table.rows[field.row].values[field.column]
        if group is None or group.full_summary is None:
            continue
        results = [cell.result for cell in field.counted_cells]
        told = [
            3600 * r["gpu_hours"] if on_gpus else r.get("seconds", {}).get("total") for r in results
        ]
        seconds = [s for s in told if s is not None]
        mean_seconds = fmean(seconds) if 0 < len(seconds) == len(told) else None
        parameters = next((result.get("parameters") for result in results), None)
        mean, std = group.full_summary.mean, group.full_summary.std
        costs.append(Cost(field.name, field.row, mean_seconds, parameters, mean, std))
    return costs


def _make_cost_figures(table: ResultTable, column: FigureColumn) -> Iterator[ReportFigure]:
    """A figure of the time and one of the parameters, of the complete rows that have a style."""
    costs = collect_costs(table, column.fields)
    complete = [cost for cost in costs if cost.row in column.styles]
    metric, incomplete = table.sweep.metric, len(column.fields) - len(costs)
    time_unit, seconds = _choose_unit(TIME_UNITS, [2 * (cost.seconds or 0) for cost in costs])
    count_unit, count = _choose_unit(COUNT_UNITS, [cost.parameters or 0 for cost in costs])
    clock = "GPU" if is_timed_on_gpus(column.fields) else "wall"
    for kind, label, what, absent, numbers in (
        (
            "cost-time",
            f"{clock} {time_unit} of a cell",
            _describe_time(column.fields, clock),
            "no result tells its time",
            [None if cost.seconds is None else cost.seconds / seconds for cost in complete],
        ),
        (
            "cost-parameters",
            f"{count_unit}parameters",
            "the parameters of the network",
            "no result tells its parameters",
            [None if cost.parameters is None else cost.parameters / count for cost in complete],
        ),
    ):
        marks = [
            Mark(cost.name, number, cost.mean, cost.std, column.styles[cost.row])
            for cost, number in zip(complete, numbers, strict=True)
            if number is not None
        ]
        against = f"{metric}{column.where} against {what}"
        if not marks:
            why = absent if complete else "no row has all of its seeds"
            yield ReportFigure("cost", f"{metric} against {what}{column.where}: {why}.")
            continue
        image = charts.draw_once(charts.draw_marks, label, metric, marks)
        caption = f"{against}: mean over seeds, bars of one standard deviation."
        if incomplete:
            caption += f" Rows that lack seeds are left out: {incomplete}."
        names = "; ".join(mark.name for mark in marks)
        alt = f"{metric} against cost{column.where}, for {names}."
        yield ReportFigure("cost", caption, f"{kind}{column.ending}", alt, image)


def _choose_unit(units: Sequence[tuple[str, float]], values: Sequence[float]) -> tuple[str, float]:
    """The largest unit in which the largest value is at least one; of time, at least a half."""
    largest = max(values, default=0.0)
    return next((unit for unit in units if largest >= unit[1]), units[-1])


def _describe_time(fields: Sequence[FieldCells], clock: str) -> str:
    cells = [cell for field in fields for cell in field.counted_cells]
    names = list(dict.fromkeys(cell.hardware for cell in cells if cell.hardware))
    hardware = ", ".join(names) or "hardware that nobody wrote down"
    mixed = " (different hardware: its times do not compare)" if len(names) > 1 else ""
    kind = "device time" if clock == "GPU" else "wall time"
    return f"the {kind} of a cell, training and test, on {hardware}{mixed}"
