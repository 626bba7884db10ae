"""Curves with bands in panels side by side, as a PNG."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from capsweep import palette
from capsweep.evaluation.picture_grid import save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_MARKERS = 12  # points of a curve of which each is shown
BESIDE = 0.05


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
    """Some curves. A band that reaches zero is cut off in a log scale."""

    quantity: str
    curves: Sequence[BandedCurve]
    scale: Literal["linear", "log"] = "linear"


def draw_panels(panels: Sequence[Panel], along: str, title: str, caption: str) -> bytes:
    """The PNG. along: what x is."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(panels), 3.9), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, curve in enumerate(panel.curves):
            _draw_curve(axes, number, curve)
        axes.set_xlabel(along, fontsize=8)
        scale = " (log scale)" if panel.scale == "log" else ""
        axes.set_ylabel(f"{panel.quantity}{scale}", fontsize=8)
        axes.set_yscale(panel.scale)
        axes.tick_params(labelsize=7, which="both")
        _set_ticks(axes, np.unique(np.concatenate([curve.x for curve in panel.curves])))
        axes.grid(color="0.9", linewidth=0.5)
        axes.legend(fontsize=7)
    figure.suptitle(title, fontsize=9)
    figure.supxlabel(caption, fontsize=6, wrap=True)
    return save_png(figure, dpi=150)


def _draw_curve(axes: "Axes", number: int, curve: BandedCurve) -> None:
    style = palette.choose_style(number)
    colour, x = style.colour, curve.x
    marker = style.marker if len(x) <= MAX_MARKERS else None
    if len(x) == 1:  # a band has no width there; points stand beside each other
        x = x + BESIDE * number
        error = np.stack([curve.middle - curve.low, curve.high - curve.middle])
        axes.errorbar(x, curve.middle, error, fmt="none", color=colour)
    else:
        axes.fill_between(x, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(
        x, curve.middle, style.line, color=colour, marker=marker, markersize=4, label=curve.label
    )
    if curve.control is not None:
        axes.axhline(curve.control, color=colour, linestyle=(0, (1, 2)))


def _set_ticks(axes: "Axes", x: np.ndarray) -> None:
    """Whole numbers alone, and few points where they are."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(x) <= MAX_MARKERS:
        axes.set_xticks(x)
    if len(x) == 1:
        axes.set_xlim(x[0] - 1, x[0] + 1)
