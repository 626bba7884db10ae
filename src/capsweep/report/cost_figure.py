"""Cost against what it buys: time and parameters, each beside the table's metric."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from capsweep.report import canvas
from capsweep.report.canvas import Style
from capsweep.report.costs import Cost, Costs
from capsweep.report.figure import Drawn, NotDrawn
from capsweep.statistics import measure

NAME = "cost"
COUNTS = (("million", 1e6), ("thousand", 1e3))


def draw(
    costs: Costs, metric: str, styles: Mapping[int, Style], stem: str, where: str
) -> Drawn | NotDrawn:
    """Two panels, of the complete rows that have a style; where: which column, for the caption."""
    shown = [cost for cost in costs.of if cost.row in styles]
    unit, seconds = costs.unit
    timed = [cost for cost in shown if cost.seconds is not None]
    sized = [cost for cost in shown if cost.parameters is not None]
    if not timed and not sized:
        why = "no row has all of its seeds" if not shown else "no result tells its time or size"
        return NotDrawn("cost", f"cost against {metric}{where}: {why}.")
    largest = max((cost.parameters or 0 for cost in sized), default=0)
    counted, count = next((c for c in COUNTS if largest >= c[1]), COUNTS[-1])
    asked: list[tuple[list[Cost], str, Callable[[Cost], float]]] = [
        (timed, f"{costs.clock} {unit} of a cell", lambda cost: (cost.seconds or 0) / seconds),
        (sized, f"{counted} parameters", lambda cost: (cost.parameters or 0) / count),
    ]
    asked = [one for one in asked if one[0]]
    with canvas.context():
        figure, panels = canvas.panels(len(asked), len(shown))
        handles: dict[int, Any] = {}
        for panel, (some, label, cost_of) in zip(panels, asked, strict=True):
            handles |= _panel(panel, some, label, cost_of, metric, styles)
        told = [cost for cost in shown if cost.row in handles]
        canvas.legend(figure, [handles[c.row] for c in told], [c.name for c in told])
        files = canvas.files(figure)
    alt = f"Cost against {metric}{where}, for {'; '.join(cost.name for cost in shown)}."
    return Drawn(stem, "cost", _caption(costs, metric, where), alt, files)


def _panel(
    panel: Axes,
    shown: Sequence[Cost],
    label: str,
    cost_of: Callable[[Cost], float],
    metric: str,
    styles: Mapping[int, Style],
) -> dict[int, Any]:
    written = measure.of(metric)
    handles = {}
    for cost in shown:
        style, std = styles[cost.row], cost.std
        handles[cost.row] = panel.errorbar(
            cost_of(cost),
            written.factor * cost.mean,
            yerr=None if std is None else written.factor * std,
            fmt=style.marker,
            color=style.colour,
            capsize=3,
            markersize=6,
        )
    panel.set_xlabel(label)
    panel.set_ylabel(f"{metric} ({written.unit.strip()})" if written.unit else metric)
    canvas.scale(panel, "x", [cost_of(cost) for cost in shown])
    return handles


def _caption(costs: Costs, metric: str, where: str) -> str:
    clock = "device time" if costs.clock == "GPU" else "wall time"
    hardware = ", ".join(costs.hardware) or "hardware that nobody wrote down"
    mixed = " (different hardware: its times do not compare)" if len(costs.hardware) > 1 else ""
    return (
        f"{metric}{where} against the {clock} of a cell, training and test, on {hardware}{mixed}, "
        "and against the parameters: mean over seeds, bars of one standard deviation. Rows that "
        "lack seeds are left out."
    )
