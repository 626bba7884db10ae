"""Figures of one finished cell: a picture, its numbers beside it, and curves with bands in panels.

`commands.eval.figures` says which there are, and in which module each is. Shape letters: T routing
iterations.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from capsweep.report import charts

MAX_MARKERS = 12  # points of a curve of which each is shown
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of quantiles
BAND = "5% to 95%"  # of curves by iteration


@dataclass(frozen=True)
class Drawing:
    """A picture and its numbers, to be written as evals/STEM.png and evals/STEM.npz.

    arrays: by name, without objects. picture: a PNG. caption: every choice, and what is not shown.
    """

    stem: str
    arrays: Mapping[str, Any]
    picture: bytes
    caption: str

    def make_files(self) -> dict[str, bytes]:
        """Return the contents by name; the caption stands with the numbers."""
        numbers = io.BytesIO()
        np.savez_compressed(numbers, **self.arrays, caption=np.array(self.caption))
        return {f"{self.stem}.npz": numbers.getvalue(), f"{self.stem}.png": self.picture}


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
class Panel:
    """Some curves. A band that reaches zero is cut off in a log scale. along: what x is."""

    quantity: str
    curves: Sequence[BandedCurve]
    scale: Literal["linear", "log"] = "linear"
    along: str = "routing iteration"


def summarise(name: str, values_XT: np.ndarray) -> dict[str, np.ndarray]:
    """Return NAME.mean and NAME.std [T], and NAME.quantiles [5, T] at LEVELS, of X numbers for each
    iteration.
    """
    return {
        f"{name}.mean": values_XT.mean(0, np.float64),
        f"{name}.std": values_XT.std(0, np.float64),
        f"{name}.quantiles": np.quantile(values_XT, LEVELS, axis=0),
    }


def make_curve(
    name: str, arrays: Mapping[str, np.ndarray], label: str, control: float | None = None
) -> BandedCurve:
    """Return the means by iteration of what was summarised under a name; band: from the first of
    LEVELS to the last.
    """
    mean_T, quantiles = arrays[f"{name}.mean"], arrays[f"{name}.quantiles"]
    x = np.arange(1, len(mean_T) + 1)
    return BandedCurve(label, x, mean_T, quantiles[0], quantiles[-1], control)


def draw_panels(panels: Sequence[Panel], title: str, caption: str) -> bytes:
    """Return a PNG of panels side by side."""
    figure = Figure(figsize=(4.2 * len(panels), 3.9), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_panel(axes, panel)
    return finish_figure(figure, title, caption)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for number, curve in enumerate(panel.curves):
        _draw_curve(axes, number, curve)
    axes.set_xlabel(panel.along, fontsize=8)
    scale = " (log scale)" if panel.scale == "log" else ""
    axes.set_ylabel(f"{panel.quantity}{scale}", fontsize=8)
    axes.set_yscale(panel.scale)
    # Whole numbers alone; with more ticks than one for a single place, they would stand between.
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.legend(fontsize=7)
    axes.tick_params(labelsize=7, which="both")
    axes.grid(color="0.9", linewidth=0.5)


def _draw_curve(axes: Axes, number: int, curve: BandedCurve) -> None:
    style, x = charts.choose_style(number), curve.x
    colour, marker = style.colour, style.marker if len(x) <= MAX_MARKERS else None
    # A band of one point shows as its edge.
    band, edge = (colour, 0.18), (colour, 0.5)
    axes.fill_between(x, curve.low, curve.high, facecolor=band, edgecolor=edge, linewidth=1)
    axes.plot(
        x, curve.middle, style.line, color=colour, marker=marker, markersize=4, label=curve.label
    )
    if curve.control is not None:
        axes.axhline(curve.control, color=colour, linestyle=(0, (1, 2)))


def finish_figure(figure: Figure, title: str, caption: str) -> bytes:
    """Return the PNG of a figure of panels, with its title above and its caption below."""
    figure.suptitle(title, fontsize=9)
    figure.supxlabel(caption, fontsize=6, wrap=True)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()
