"""How the report's figures look: colours that all eyes tell apart, and bytes that are the same when
the numbers are.
"""

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

# Okabe and Ito 2008, without the yellow, which white paper swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":")  # as many as have no factor in common with the colours
MARKERS = "osD^vPX*<>"
WIDTH, HEIGHT = 4.6, 2.8  # inches of a panel: its letters can be read on a phone's screen
LEGEND_LINE = 0.18  # inches
LETTERS = 9
TICKS = 6  # at most, so that their numbers do not touch
PNG_DPI, CSS_DPI = 150, 96
SPREAD = 8.0  # the largest by the smallest, from which a scale is logarithmic

OPTIONS: dict[Any, Any] = {
    "font.size": LETTERS,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "figure.facecolor": "white",
    "svg.hashsalt": "capsweep",
    "svg.fonttype": "path",
}


@dataclass(frozen=True)
class Style:
    """How a row is drawn, in every figure alike."""

    colour: str
    line: str
    marker: str


@dataclass(frozen=True)
class Files:
    """A figure's bytes; width, height: on a page, in its pixels."""

    svg: bytes
    png: bytes
    width: int
    height: int


def style(index: int) -> Style:
    """Of the row at a place among those that are drawn; 28 differ."""
    return Style(
        COLOURS[index % len(COLOURS)], LINES[index % len(LINES)], MARKERS[index % len(MARKERS)]
    )


def figure(names: int) -> tuple[Figure, Axes]:
    """A figure of one panel, with room below it for a legend of so many names."""
    legend = LEGEND_LINE * names + 0.1
    height = HEIGHT + legend
    figure = Figure(figsize=(WIDTH, height))
    panel = figure.subplots()
    bottom = (legend + 0.48) / height
    figure.subplots_adjust(left=0.16, right=0.97, top=1 - 0.12 / height, bottom=bottom)
    return figure, panel


def legend(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Names below the panel; none is read as mathematics, whatever its letters."""
    shown = [f" {name}" for name in names]  # one that begins with _ would be left out
    box = figure.legend(
        handles, shown, loc="lower left", bbox_to_anchor=(0.01, 0.0), ncols=1, frameon=False,
        fontsize=LETTERS, borderaxespad=0.2, labelspacing=0.3, handlelength=2.6,
    )  # fmt: skip
    for text in box.get_texts():
        text.set_parse_math(False)


def scale(panel: Axes, way: Literal["x", "y"], values: Sequence[float]) -> None:
    """Make an axis logarithmic where its numbers are positive and far apart; set its ticks."""
    axis: Axis = panel.xaxis if way == "x" else panel.yaxis
    if min(values) <= 0 or max(values) / min(values) < SPREAD:
        axis.set_major_locator(MaxNLocator(TICKS))
        return
    change = panel.set_xscale if way == "x" else panel.set_yscale
    change("log", nonpositive="clip")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def files(figure: Figure) -> Files:
    """The figure as SVG and as PNG."""
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    figure.savefig(png, format="png", dpi=PNG_DPI)
    wide, high = (round(CSS_DPI * inches) for inches in figure.get_size_inches())
    return Files(svg.getvalue(), png.getvalue(), wide, high)


def context() -> AbstractContextManager[None]:
    """Within it, figures look as here."""
    return mpl.rc_context(OPTIONS)
