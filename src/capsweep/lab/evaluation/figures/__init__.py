"""Figures of a finished cell: a picture with its numbers, and panels of curves with bands.

The figures and their modules are listed in `commands.eval.figures`.

Shape letters: T routing iterations, X values to summarise.
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

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # levels of quantiles
BAND = "5% to 95%"  # the band of `make_curve`, for captions


@dataclass(frozen=True)
class Drawing:
    """A picture and its numbers, to be written as evals/STEM.png and evals/STEM.npz.

    Attributes:
        stem: Name of the two files, without extension.
        arrays: The numbers by name, in types that NumPy stores without pickling.
        picture: Content of the PNG file.
        caption: Text that says how the picture was made, and what the picture does not show.
    """

    stem: str
    arrays: Mapping[str, Any]
    picture: bytes
    caption: str

    def make_files(self) -> dict[str, bytes]:
        """Return the contents of the two files by file name. The .npz file also has the caption."""
        numbers = io.BytesIO()
        np.savez_compressed(numbers, **self.arrays, caption=np.array(self.caption))
        return {f"{self.stem}.npz": numbers.getvalue(), f"{self.stem}.png": self.picture}


@dataclass(frozen=True)
class BandedCurve:
    """A curve by routing iteration, with a band around it.

    Attributes:
        label: Name in the legend.
        middle: Values of the curve.
        low: Lower edge of the band.
        high: Upper edge of the band.
        control: A constant to compare the curve with, drawn as a dotted line; None: no line.
    """

    label: str
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    control: float | None = None


@dataclass(frozen=True)
class Panel:
    """A panel of curves.

    Attributes:
        quantity: Label of the vertical axis.
        curves: Curves with bands. A log scale cannot show a band at zero or below.
        scale: Scale of the vertical axis.
    """

    quantity: str
    curves: Sequence[BandedCurve]
    scale: Literal["linear", "log"] = "linear"


def summarise(name: str, values_XT: np.ndarray) -> dict[str, np.ndarray]:
    """Compute mean, standard deviation and quantiles over X values for each iteration.

    Args:
        name: First part of the names in the result.
        values_XT: Values to summarise.

    Returns:
        Arrays by name: NAME.mean [T], NAME.std [T], and NAME.quantiles [5, T] at LEVELS.
    """
    return {
        f"{name}.mean": values_XT.mean(0, np.float64),
        f"{name}.std": values_XT.std(0, np.float64),
        f"{name}.quantiles": np.quantile(values_XT, LEVELS, axis=0),
    }


def make_curve(
    name: str, arrays: Mapping[str, np.ndarray], label: str, control: float | None = None
) -> BandedCurve:
    """Make a curve of means by iteration, with a band from the 5 % to the 95 % quantile.

    Args:
        name: Name under which `summarise` stored the numbers in `arrays`.
        arrays: Results of `summarise`.
        label: Name of the curve in the legend.
        control: A constant to compare the curve with, or None.
    """
    mean_T, quantiles = arrays[f"{name}.mean"], arrays[f"{name}.quantiles"]
    return BandedCurve(label, mean_T, quantiles[0], quantiles[-1], control)


def draw_panels(panels: Sequence[Panel], title: str, caption: str) -> bytes:
    """Draw panels side by side, and return the PNG."""
    figure = Figure(figsize=(4.2 * len(panels), 3.9), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_panel(axes, panel)
    return finish_figure(figure, title, caption)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for number, curve in enumerate(panel.curves):
        _draw_curve(axes, number, curve)
    axes.set_xlabel("routing iteration", fontsize=8)
    scale = " (log scale)" if panel.scale == "log" else ""
    axes.set_ylabel(f"{panel.quantity}{scale}", fontsize=8)
    axes.set_yscale(panel.scale)
    # Ticks are at whole numbers only. `min_n_ticks` keeps this true for an axis with one point.
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.legend(fontsize=7)
    axes.tick_params(labelsize=7, which="both")
    axes.grid(color="0.9", linewidth=0.5)


def _draw_curve(axes: Axes, number: int, curve: BandedCurve) -> None:
    (colour, line, marker), x = charts.choose_style(number), np.arange(1, len(curve.middle) + 1)
    # If the curve has a single point, only the edge of the band is visible.
    band, edge = (colour, 0.18), (colour, 0.5)
    axes.fill_between(x, curve.low, curve.high, facecolor=band, edgecolor=edge, linewidth=1)
    axes.plot(x, curve.middle, line, label=curve.label, color=colour, marker=marker, markersize=4)
    if curve.control is not None:
        axes.axhline(curve.control, color=colour, linestyle=(0, (1, 2)))


def finish_figure(figure: Figure, title: str, caption: str) -> bytes:
    """Add a title above a figure and a caption below it, and return the PNG."""
    figure.suptitle(title, fontsize=9)
    figure.supxlabel(caption, fontsize=6, wrap=True)
    return charts.encode_png(figure, dpi=150)
