"""How the report's figures look: colours that all eyes tell apart, and bytes that are the same when
the numbers are.
"""

import base64
import importlib.metadata
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from capsweep.config import code_identity
from capsweep.storage import disk_cache

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.6, 2.9  # inches of a panel: its letters can be read on a phone's screen
LEGEND_LINE = 0.18  # inches
LETTERS = 9
TICKS = 6  # at most, so that their numbers do not touch
PNG_DPI, CSS_DPI = 150, 96
PLAIN = (-3, 4)  # powers of ten between which numbers are written out: there is room for no more
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
Section = Literal["curves", "cost", "schedules"]


@dataclass(frozen=True)
class Files:
    """A figure's bytes; width, height: on a page, in its pixels."""

    svg: bytes
    png: bytes
    width: int
    height: int


def draw_once(draw: "Callable[..., Figure]", *numbers: Any) -> Files:
    """The figure that `draw` makes of some numbers, plain data or dataclasses of it.

    Drawn once on a machine: after that matplotlib is not even imported.
    """

    def compute_image() -> dict[str, Any]:
        import matplotlib as mpl

        with mpl.rc_context(OPTIONS):
            return _encode_figure(draw(*numbers))

    inputs = json.dumps([draw.__qualname__, numbers], default=asdict)
    code = [code_identity.package(), importlib.metadata.version("matplotlib")]
    kept = disk_cache.compute_once("figures", f"{code} {inputs}", compute_image)
    png = base64.b64decode(kept["png"])
    return Files(kept["svg"].encode(), png, kept["width"], kept["height"])


def make_figure(names: int) -> "tuple[Figure, Axes]":
    """A figure of one panel, with room below it for a legend of so many names."""
    from matplotlib.figure import Figure

    legend = LEGEND_LINE * names + 0.1
    height = HEIGHT + legend
    figure = Figure(figsize=(WIDTH, height))
    panel = figure.subplots()
    bottom = (legend + 0.48) / height
    figure.subplots_adjust(left=0.16, right=0.97, top=1 - 0.24 / height, bottom=bottom)
    return figure, panel


def add_legend(figure: "Figure", handles: Sequence[Any], names: Sequence[str]) -> None:
    """Names below the panel; none is read as mathematics, whatever its letters."""
    shown = [f" {name}" for name in names]  # one that begins with _ would be left out
    box = figure.legend(
        handles,
        shown,
        loc="lower left",
        bbox_to_anchor=(0.01, 0.0),
        frameon=False,
        fontsize=LETTERS,
        borderaxespad=0.2,
        labelspacing=0.3,
        handlelength=2.6,
    )
    for text in box.get_texts():
        text.set_parse_math(False)


def set_scale(panel: "Axes", way: Literal["x", "y"], values: Sequence[float]) -> None:
    """Make an axis logarithmic where its numbers are positive and far apart; set its ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axis: Axis = panel.xaxis if way == "x" else panel.yaxis
    if min(values) <= 0 or max(values) / min(values) < SPREAD:
        axis.set_major_locator(MaxNLocator(TICKS))
        panel.ticklabel_format(axis=way, style="sci", scilimits=PLAIN, useMathText=True)
        return
    change = panel.set_xscale if way == "x" else panel.set_yscale
    change("log", nonpositive="clip")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _encode_figure(figure: "Figure") -> dict[str, Any]:
    """The figure as SVG and as PNG."""
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    figure.savefig(png, format="png", dpi=PNG_DPI)
    wide, high = (round(CSS_DPI * inches) for inches in figure.get_size_inches())
    image = base64.b64encode(png.getvalue()).decode()
    return {"svg": svg.getvalue().decode(), "png": image, "width": wide, "height": high}


@dataclass(frozen=True)
class Drawn:
    """stem: of its files; section: of the page; caption: every choice, as text; alt: for those who
    do not see it.
    """

    stem: str
    section: Section
    caption: str
    alt: str
    files: Files


@dataclass(frozen=True)
class NotDrawn:
    """The section in which a figure is not, and why, in a sentence."""

    section: Section
    why: str
