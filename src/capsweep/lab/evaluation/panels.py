"""Curves with bands, in panels side by side, as a PNG.

Shape letters: T routing iterations.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from capsweep.report import charts

MAX_MARKERS = 12  # points of a curve of which each is shown
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of quantiles
BAND = "5% to 95%"  # of curves by iteration


@dataclass(frozen=True)
class BandedCurve:
    """middle, low, high at x. control: a value to compare all of the curve with, drawn dotted."""

    label: str
    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    control: float | None = None


@dataclass(frozen=True)
class Spread:
    """Of many numbers for each iteration. mean, std: [T]; quantiles: [5, T], at LEVELS."""

    mean: np.ndarray
    std: np.ndarray
    quantiles: np.ndarray

    @classmethod
    def of(cls, values_XT: np.ndarray) -> "Spread":
        """Return that of X numbers for each iteration."""
        quantiles = np.quantile(values_XT, LEVELS, axis=0)
        mean_T, std_T = values_XT.mean(0, np.float64), values_XT.std(0, np.float64)
        return cls(mean_T, std_T, quantiles)

    def collect_arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return NAME.mean, NAME.std and NAME.quantiles."""
        return {f"{name}.{key}": array for key, array in vars(self).items()}

    def make_curve(self, label: str, control: float | None = None) -> BandedCurve:
        """Return the means by iteration; band: from the first of LEVELS to the last."""
        x = np.arange(1, len(self.mean) + 1)
        return BandedCurve(label, x, self.mean, self.quantiles[0], self.quantiles[-1], control)


@dataclass(frozen=True)
class Panel:
    """Some curves. A band that reaches zero is cut off in a log scale. along: what x is, where it
    is not that of the other panels.
    """

    quantity: str
    curves: Sequence[BandedCurve]
    scale: Literal["linear", "log"] = "linear"
    along: str = ""


def draw_panels(panels: Sequence[Panel], along: str, title: str, caption: str) -> bytes:
    """The PNG. along: what x is."""
    figure = Figure(figsize=(4.2 * len(panels), 3.9), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_panel(axes, panel, panel.along or along)
        axes.tick_params(labelsize=7, which="both")
        axes.grid(color="0.9", linewidth=0.5)
    return finish_figure(figure, title, caption)


def _draw_panel(axes: Axes, panel: Panel, along: str) -> None:
    for number, curve in enumerate(panel.curves):
        _draw_curve(axes, number, curve)
    axes.set_xlabel(along, fontsize=8)
    scale = " (log scale)" if panel.scale == "log" else ""
    axes.set_ylabel(f"{panel.quantity}{scale}", fontsize=8)
    axes.set_yscale(panel.scale)
    places = {place for curve in panel.curves for place in curve.x}
    if len(places) == 1:  # a locator wants two ticks
        axes.set_xticks([*places])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # whole numbers alone
    axes.legend(fontsize=7)


def _draw_curve(axes: Axes, number: int, curve: BandedCurve) -> None:
    style = charts.choose_style(number)
    colour, x = style.colour, curve.x
    marker = style.marker if len(x) <= MAX_MARKERS else None
    if len(x) == 1:  # a band of one point cannot be seen
        ends = np.maximum([curve.middle - curve.low, curve.high - curve.middle], 0)
        axes.errorbar(x, curve.middle, ends, fmt="none", color=colour, capsize=3)
    else:
        axes.fill_between(x, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(
        x, curve.middle, style.line, color=colour, marker=marker, markersize=4, label=curve.label
    )
    if curve.control is not None:
        axes.axhline(curve.control, color=colour, linestyle=(0, (1, 2)))


def finish_figure(figure: Figure, title: str, caption: str) -> bytes:
    """The PNG of a figure of panels, with its title above and its caption below."""
    figure.suptitle(title, fontsize=9)
    figure.supxlabel(caption, fontsize=6, wrap=True)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()
