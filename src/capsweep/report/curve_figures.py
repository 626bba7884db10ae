"""Curves by epoch: loss, error, throughput, and what is scheduled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capsweep.palette import Style
from capsweep.report import canvas
from capsweep.report.cells import FieldCells, KnownCell
from capsweep.report.curves import Curve, Series, alike, curves, of_rows, split_of, throughput
from capsweep.report.figure import Drawn, NotDrawn, Section
from capsweep.statistics import measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("loss", "error", "throughput", "learning-rate", "margin")


@dataclass(frozen=True)
class Plan:
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


def plans(fields: Sequence[FieldCells]) -> list[Plan]:
    """The figures of a column of the table."""
    loss, error = split_of(fields, "loss"), split_of(fields, "error")
    percent = measure.of(error)
    return [
        Plan("loss", loss, of_rows(loss), f"no finished cell has {loss} by epoch"),
        Plan(
            "error",
            f"{error} ({percent.unit.strip()})",
            of_rows(error),
            f"no finished cell has {error} by epoch",
            factor=percent.factor,
        ),
        Plan(
            "throughput",
            "training images / s",
            throughput,
            "no finished cell tells its images a second and the seconds of its epochs",
            said="An epoch's time includes its validation. ",
        ),
        Plan(
            "learning-rate",
            "learning rate",
            of_rows("lr"),
            "no finished cell has its learning rate by epoch",
            said="As it is after the last step of an epoch. ",
            scheduled=True,
        ),
        Plan(
            "margin",
            "margin of the loss",
            of_rows("margin"),
            "no finished cell tells a margin that grows",
            said="As it is after the last step of an epoch. ",
            scheduled=True,
        ),
    ]


def draw(
    plan: Plan, fields: Sequence[FieldCells], styles: Mapping[int, Style], stem: str, where: str
) -> Drawn | NotDrawn:
    """The figure of a plan, of the rows that have a style; where: which column, for the caption."""
    found = curves([field for field in fields if field.row in styles], plan.series)
    if not found:
        return NotDrawn(plan.section, f"{plan.what}{where}: {plan.absent}.")
    shown = alike(found) if plan.scheduled else [(curve, []) for curve in found]
    names = [_named(curve, others, len(styles)) for curve, others in shown]
    lines = [
        (curve, styles[curve.row], name) for (curve, _), name in zip(shown, names, strict=True)
    ]
    files = canvas.draw_once(_draw_curves, plan.what, plan.factor, lines, found)
    alt = f"Curves of {plan.what} by epoch{where}, for {'; '.join(names)}."
    return Drawn(stem, plan.section, _caption(plan, found, fields, where), alt, files)


def _draw_curves(
    what: str, factor: float, lines: Sequence[tuple[Curve, Style, str]], found: Sequence[Curve]
) -> "Figure":
    """Draw lines, each with its style and name; found: all curves that the axes have room for."""
    figure, panel = canvas.figure(len(lines))
    handles = [_line(panel, curve, style, factor) for curve, style, _ in lines]
    _axes(panel, what, factor, found)
    canvas.legend(figure, handles, [name for _, _, name in lines])
    return figure


def _line(panel: "Axes", curve: Curve, style: Style, factor: float) -> object:
    mean, low, high = ([factor * v for v in vs] for vs in (curve.mean, curve.low, curve.high))
    if low != high:
        panel.fill_between(curve.epochs, low, high, color=style.colour, alpha=0.15, linewidth=0)
    alone = len(curve.epochs) == 1  # a line of one epoch is not to be seen
    (line,) = panel.plot(
        curve.epochs, mean, style.line, color=style.colour, marker=style.marker if alone else ""
    )
    return line


def _axes(panel: "Axes", what: str, factor: float, found: Sequence[Curve]) -> None:
    from matplotlib.ticker import MaxNLocator

    panel.set_xlabel("epoch")
    panel.set_ylabel(what)
    epochs = {epoch for curve in found for epoch in curve.epochs}
    if len(epochs) == 1:  # a locator wants two ticks, and would put them between epochs
        panel.set_xticks(sorted(epochs))
    else:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    values = [factor * value for curve in found for value in curve.mean]
    canvas.scale(panel, "y", values)


def _named(curve: Curve, others: Sequence[Curve], total: int) -> str:
    if not others:
        return curve.name
    if len(others) + 1 == total:
        return "all rows"
    return ", ".join([curve.name, *(other.name for other in others[:2])]) + (
        f" and {len(others) - 2} more" if len(others) > 2 else ""
    )


def _caption(plan: Plan, found: Sequence[Curve], fields: Sequence[FieldCells], where: str) -> str:
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
    finished = {field.row: len(field.counted) for field in fields}
    for curve in found:
        if curve.seeds < finished[curve.row]:
            missing = finished[curve.row] - curve.seeds
            text += f"{curve.name}: {missing} of its finished cells have no such numbers. "
    return text.strip()
