"""Curves by epoch: loss, error, throughput, and what is scheduled."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from capsweep.palette import Style
from capsweep.report import charts
from capsweep.report.cells import FieldCells, KnownCell
from capsweep.report.charts import Drawn, NotDrawn, Section
from capsweep.statistics import metric_format
from capsweep.statistics.seeds import list_common_places

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Series = Mapping[int, float]  # a number per epoch
KINDS = ("loss", "error", "throughput", "learning-rate", "margin")


@dataclass(frozen=True)
class Curve:
    """mean, low, high: over the seeds, of each epoch that all of them have. epochs: from 1 on.

    lengths: how many epochs the shortest and the longest seed have.
    """

    name: str
    row: int
    epochs: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    seeds: int
    lengths: tuple[int, int]


def over_seeds(name: str, row: int, seeds: Sequence[Series]) -> Curve | None:
    """The curve of some seeds; None where they have no epoch in common.

    An epoch counts when every seed has it, as a finite number.
    """
    values = {e: [series[e] for series in seeds] for e in list_common_places(seeds)}
    values = {e: found for e, found in values.items() if all(map(math.isfinite, found))}
    if not values:
        return None
    lows, highs = [min(v) for v in values.values()], [max(v) for v in values.values()]
    means = (  # of equal numbers, it may be rounded out of them
        min(max(fmean(v), low), high)
        for v, low, high in zip(values.values(), lows, highs, strict=True)
    )
    lengths = [len(series) for series in seeds]
    return Curve(
        name=name,
        row=row,
        epochs=tuple(epoch + 1 for epoch in values),
        mean=tuple(means),
        low=tuple(lows),
        high=tuple(highs),
        seeds=len(seeds),
        lengths=(min(lengths), max(lengths)),
    )


def collect_curves(
    fields: Sequence[FieldCells], series: Callable[[KnownCell], Series]
) -> list[Curve]:
    """A curve for each field of a column of which finished cells have the series."""
    found = []
    for field in fields:
        seeds = [s for cell in field.counted_cells if (s := series(cell))]
        if (curve := over_seeds(field.name, field.row, seeds)) is not None:
            found.append(curve)
    return found


def of_rows(key: str) -> Callable[[KnownCell], Series]:
    """The number at a key of a cell's rows."""
    return lambda cell: {row["epoch"]: row[key] for row in cell.rows if _is_number(row.get(key))}


def split_of(fields: Sequence[FieldCells], name: str) -> str:
    """`val/NAME` where all rows of finished cells have it, else `train/NAME`: like with like."""
    rows = [row for field in fields for cell in field.counted_cells for row in cell.rows]
    validated = bool(rows) and all(f"val/{name}" in row for row in rows)
    return f"{'val' if validated else 'train'}/{name}"


def read_throughput(cell: KnownCell) -> Series:
    """Training images a second of each epoch; empty where the result does not tell how many."""
    result, images = cell.result, 0.0
    if result.get("epochs") and result.keys() >= {"images_per_second", "seconds"}:
        images = result["images_per_second"] * result["seconds"]["fit"] / result["epochs"]
    seconds = of_rows("seconds")(cell)
    return {epoch: images / s for epoch, s in seconds.items() if s > 0} if images else {}


def group_equal_curves(curves: Sequence[Curve]) -> list[tuple[Curve, list[Curve]]]:
    """Curves of the same numbers once, with the others that they stand for."""
    found: dict[Any, list[Curve]] = {}
    for curve in curves:
        found.setdefault((curve.epochs, curve.mean, curve.low, curve.high), []).append(curve)
    return [(same[0], same[1:]) for same in found.values()]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True)
class CurvePlan:
    """What a figure shows. what: for the axis; series: of a cell; factor: of its numbers; absent:
    why it may not be there; said: after the caption; scheduled: equal curves are drawn once.
    """

    name: str
    what: str
    series: Callable[[KnownCell], Series]
    absent: str
    said: str = ""
    factor: float = 1.0
    scheduled: bool = False

    @property
    def section(self) -> Section:
        """Of the page."""
        return "schedules" if self.scheduled else "curves"


def plan_curves(fields: Sequence[FieldCells]) -> list[CurvePlan]:
    """The figures of a column of the table."""
    loss, error = split_of(fields, "loss"), split_of(fields, "error")
    percent = metric_format.measure_of(error)
    return [
        CurvePlan("loss", loss, of_rows(loss), f"no finished cell has {loss} by epoch"),
        CurvePlan(
            "error",
            f"{error} ({percent.unit.strip()})",
            of_rows(error),
            f"no finished cell has {error} by epoch",
            factor=percent.factor,
        ),
        CurvePlan(
            "throughput",
            "training images / s",
            read_throughput,
            "no finished cell tells its images a second and the seconds of its epochs",
            said="An epoch's time includes its validation. ",
        ),
        CurvePlan(
            "learning-rate",
            "learning rate",
            of_rows("lr"),
            "no finished cell has its learning rate by epoch",
            said="As it is after the last step of an epoch. ",
            scheduled=True,
        ),
        CurvePlan(
            "margin",
            "margin of the loss",
            of_rows("margin"),
            "no finished cell tells a margin that grows",
            said="As it is after the last step of an epoch. ",
            scheduled=True,
        ),
    ]


def draw_curves(
    plan: CurvePlan,
    fields: Sequence[FieldCells],
    styles: Mapping[int, Style],
    stem: str,
    where: str,
) -> Drawn | NotDrawn:
    """The figure of a plan, of the rows that have a style; where: which column, for the caption."""
    found = collect_curves([field for field in fields if field.row in styles], plan.series)
    if not found:
        return NotDrawn(plan.section, f"{plan.what}{where}: {plan.absent}.")
    shown = group_equal_curves(found) if plan.scheduled else [(curve, []) for curve in found]
    names = [_curve_name(curve, others, len(styles)) for curve, others in shown]
    lines = [
        (curve, styles[curve.row], name) for (curve, _), name in zip(shown, names, strict=True)
    ]
    files = charts.draw_once(_draw_curves, plan.what, plan.factor, lines, found)
    alt = f"Curves of {plan.what} by epoch{where}, for {'; '.join(names)}."
    return Drawn(stem, plan.section, _write_caption(plan, found, fields, where), alt, files)


def _draw_curves(
    what: str, factor: float, lines: Sequence[tuple[Curve, Style, str]], found: Sequence[Curve]
) -> "Figure":
    """Draw lines, each with its style and name; found: all curves that the axes have room for."""
    figure, panel = charts.make_figure(len(lines))
    handles = [_draw_line(panel, curve, style, factor) for curve, style, _ in lines]
    _label_axes(panel, what, factor, found)
    charts.add_legend(figure, handles, [name for _, _, name in lines])
    return figure


def _draw_line(panel: "Axes", curve: Curve, style: Style, factor: float) -> object:
    mean, low, high = ([factor * v for v in vs] for vs in (curve.mean, curve.low, curve.high))
    if low != high:
        panel.fill_between(curve.epochs, low, high, color=style.colour, alpha=0.15, linewidth=0)
    alone = len(curve.epochs) == 1  # a line of one epoch is not to be seen
    (line,) = panel.plot(
        curve.epochs, mean, style.line, color=style.colour, marker=style.marker if alone else ""
    )
    return line


def _label_axes(panel: "Axes", what: str, factor: float, found: Sequence[Curve]) -> None:
    from matplotlib.ticker import MaxNLocator

    panel.set_xlabel("epoch")
    panel.set_ylabel(what)
    epochs = {epoch for curve in found for epoch in curve.epochs}
    if len(epochs) == 1:  # a locator wants two ticks, and would put them between epochs
        panel.set_xticks(sorted(epochs))
    else:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    values = [factor * value for curve in found for value in curve.mean]
    charts.set_scale(panel, "y", values)


def _curve_name(curve: Curve, others: Sequence[Curve], total: int) -> str:
    if not others:
        return curve.name
    if len(others) + 1 == total:
        return "all rows"
    return ", ".join([curve.name, *(other.name for other in others[:2])]) + (
        f" and {len(others) - 2} more" if len(others) > 2 else ""
    )


def _write_caption(
    plan: CurvePlan, found: Sequence[Curve], fields: Sequence[FieldCells], where: str
) -> str:
    seeds = [curve.seeds for curve in found]
    few, many = min(seeds), max(seeds)
    told = f"{few}" if few == many else f"{few} to {many}"
    text = f"{plan.what} by epoch{where}: mean over seeds ({told}), band from the lowest seed to "
    text += f"the highest. {plan.said}"
    for curve in found:
        short, long = curve.lengths
        if short != long or len(curve.epochs) < short:
            text += f"{curve.name}: its seeds have {short} to {long} epochs, shown are those that "
            text += "all have. "
    finished = {field.row: len(field.counted_cells) for field in fields}
    for curve in found:
        if curve.seeds < finished[curve.row]:
            missing = finished[curve.row] - curve.seeds
            text += f"{curve.name}: {missing} of its finished cells have no such numbers. "
    return text.strip()
