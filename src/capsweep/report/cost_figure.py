"""Cost against what it buys: time and parameters, each beside the table's metric."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, TypeAlias

from capsweep.palette import Style
from capsweep.report import charts
from capsweep.report.cells import FieldCells, KnownCell
from capsweep.report.charts import Drawn, NotDrawn
from capsweep.report.table import ResultTable
from capsweep.statistics import metric_format

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
KINDS = ("cost-time", "cost-parameters")
Mark: TypeAlias = tuple[float, float, float | None, Style, str]  # cost, mean, std, style, name
COUNTS = (("million", 1e6), ("thousand", 1e3), ("", 1.0))


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


@dataclass(frozen=True)
class RowCosts:
    """of: the costs, in the order of the table. clock: what the seconds are of, "GPU" where they
    are an accelerator's, else "wall". hardware: all that the cells ran on. incomplete: how many
    fields lack seeds.
    """

    of: tuple[Cost, ...]
    clock: str
    hardware: tuple[str, ...]
    incomplete: int

    @property
    def unit(self) -> tuple[str, float]:
        """The unit in which the dearest cell has no small number, and its seconds."""
        longest = max((cost.seconds for cost in self.of if cost.seconds is not None), default=0.0)
        return next((unit for unit in UNITS if longest >= unit[1] / 2), UNITS[-1])


def collect_costs(table: ResultTable, fields: Sequence[FieldCells]) -> RowCosts:
    """Of the complete fields among some of one column."""
    cells = [cell for field in fields for cell in field.counted_cells]
    on_gpus = bool(cells) and all(
        cell.result.get("gpu_hours") for cell in cells
    )  # 0 where it has none
    found = []
    for field in fields:
        value = table.rows[field.row].values[field.column]
        if value is None or not value.is_complete or value.summary is None:
            continue
        seconds = [_training_seconds(cell, on_gpus) for cell in field.counted_cells]
        told = [s for s in seconds if s is not None]
        summary = value.summary
        mean_seconds = fmean(told) if told and len(told) == len(seconds) else None
        parameters = next((c.result.get("parameters") for c in field.counted_cells), None)
        found.append(
            Cost(field.name, field.row, mean_seconds, parameters, summary.mean, summary.std)
        )
    hardware = dict.fromkeys(name for cell in cells if (name := cell.hardware))
    clock = "GPU" if on_gpus else "wall"
    return RowCosts(tuple(found), clock, tuple(hardware), len(fields) - len(found))


def _training_seconds(cell: KnownCell, on_gpus: bool) -> float | None:
    if on_gpus:
        return 3600 * cell.result["gpu_hours"]
    return cell.result.get("seconds", {}).get("total")


@dataclass(frozen=True)
class CostPanel:
    """kind: one of `KINDS`; label: of its axis; of: the cost; said: what it is of, in the caption;
    absent: why nothing may be there.
    """

    kind: str
    label: str
    of: Callable[[Cost], float | None]
    said: str
    absent: str


def draw_costs(
    costs: RowCosts, metric: str, styles: Mapping[int, Style], ending: str, where: str
) -> Iterator[Drawn | NotDrawn]:
    """A figure of each kind, of the complete rows that have a style; where: which column, for the
    caption.
    """
    complete = [cost for cost in costs.of if cost.row in styles]
    for panel in _cost_panels(costs):
        shown = [cost for cost in complete if panel.of(cost) is not None]
        if shown:
            stem = f"{panel.kind}{ending}"
            yield _draw_cost(panel, shown, metric, styles, stem, where, costs.incomplete)
        else:
            why = panel.absent if complete else "no row has all of its seeds"
            yield NotDrawn("cost", f"{metric} against {panel.said}{where}: {why}.")


def _cost_panels(costs: RowCosts) -> tuple[CostPanel, CostPanel]:
    unit, seconds = costs.unit
    largest = max((cost.parameters or 0 for cost in costs.of), default=0)
    counted, count = next((c for c in COUNTS if largest >= c[1]), COUNTS[-1])
    clock = "device time" if costs.clock == "GPU" else "wall time"
    hardware = ", ".join(costs.hardware) or "hardware that nobody wrote down"
    mixed = " (different hardware: its times do not compare)" if len(costs.hardware) > 1 else ""
    return (
        CostPanel(
            "cost-time",
            f"{costs.clock} {unit} of a cell",
            lambda cost: None if cost.seconds is None else cost.seconds / seconds,
            f"the {clock} of a cell, training and test, on {hardware}{mixed}",
            "no result tells its time",
        ),
        CostPanel(
            "cost-parameters",
            f"{counted} parameters".strip(),
            lambda cost: None if cost.parameters is None else cost.parameters / count,
            "the parameters of the network",
            "no result tells its parameters",
        ),
    )


def _draw_cost(
    panel: CostPanel,
    shown: Sequence[Cost],
    metric: str,
    styles: Mapping[int, Style],
    stem: str,
    where: str,
    incomplete: int,
) -> Drawn:
    marks = [
        (panel.of(cost) or 0.0, cost.mean, cost.std, styles[cost.row], cost.name) for cost in shown
    ]
    files = charts.draw_once(_draw_marks, panel.label, metric, marks)
    caption = (
        f"{metric}{where} against {panel.said}: mean over seeds, bars of one standard deviation."
    )
    if incomplete:
        caption += f" Rows that lack seeds are left out: {incomplete}."
    names = "; ".join(cost.name for cost in shown)
    return Drawn(stem, "cost", caption, f"{metric} against cost{where}, for {names}.", files)


def _draw_marks(label: str, metric: str, marks: Sequence[Mark]) -> "Figure":
    """Draw each mark at its cost and its mean, with a bar of one standard deviation."""
    written, handles = metric_format.measure_of(metric), []
    figure, axes = charts.make_figure(len(marks))
    for place, mean, std, style, _ in marks:
        handles.append(
            axes.errorbar(
                place,
                written.factor * mean,
                yerr=None if std is None else written.factor * std,
                fmt=style.marker,
                color=style.colour,
                capsize=3,
                markersize=6,
            )
        )
    axes.set_xlabel(label)
    axes.set_ylabel(f"{metric} ({written.unit.strip()})" if written.unit else metric)
    charts.set_scale(axes, "x", [place for place, *_ in marks])
    charts.add_legend(figure, handles, [name for *_, name in marks])
    return figure
