"""Pictures of figures as PNG: images in rows and columns, and curves with bands in panels.

Shape letters: R rows, K columns, C H W image; X Y the canvas; T routing iterations.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from capsweep.report import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 200
GAP = 4  # pixels between pictures
SIDE = 112  # pixels: about as high as a picture is drawn
SCALED = "standardised inputs are scaled to their own range, of stereo images the first is shown"
LETTER, LINE, MARGIN = 11, 26, 16  # pixels of a letter and of a line of text, and around all


@dataclass(frozen=True)
class Grid:
    """tiles_RKHW3: in 0..1; NaN is left white. beside: a text for each row; above: for each column;
    below: for each picture, or for none.

    side: about how many pixels a picture has.
    """

    tiles_RKHW3: np.ndarray
    beside: Sequence[str]
    above: Sequence[str]
    title: str
    caption: str
    side: int = SIDE
    below: Sequence[Sequence[str]] = ()


def to_rgb(images_KCHW: np.ndarray) -> np.ndarray:
    """[K, H, W, 3] of images in 0..1: colours of three channels, else the first channel in grey."""
    channels = (0, 1, 2) if images_KCHW.shape[1] == 3 else (0, 0, 0)
    return images_KCHW[:, channels].transpose(0, 2, 3, 1).clip(0, 1)


def scale_images(images_KCHW: np.ndarray) -> np.ndarray:
    """Images to be shown: if any leaves 0..1, all are scaled to their own range each."""
    if images_KCHW.min() >= 0 and images_KCHW.max() <= 1:
        return images_KCHW
    low, high = (f(images_KCHW, axis=(1, 2, 3), keepdims=True) for f in (np.min, np.max))
    return (images_KCHW - low) / np.maximum(high - low, np.finfo(np.float32).tiny)


def draw_grid(grid: Grid) -> bytes:
    """The PNG."""
    from matplotlib.figure import Figure

    rows, columns, height, width, _ = grid.tiles_RKHW3.shape
    zoom = max(1, round(grid.side / max(height, width)))
    tile_height, tile_width = zoom * height, zoom * width
    x_K = np.arange(columns) * (tile_width + GAP)
    y_R = np.arange(rows) * (tile_height + (7 * GAP if grid.below else GAP))
    canvas_YX3 = np.ones((y_R[-1] + tile_height, x_K[-1] + tile_width, 3))
    for tiles_KHW3, y in zip(grid.tiles_RKHW3, y_R, strict=True):
        for tile_HW3, x in zip(tiles_KHW3, x_K, strict=True):
            large = tile_HW3.repeat(zoom, axis=0).repeat(zoom, axis=1)
            canvas_YX3[y : y + tile_height, x : x + tile_width] = np.nan_to_num(large, nan=1.0)
    height, width = canvas_YX3.shape[:2]
    left, right = MARGIN + LETTER * max(map(len, grid.beside)), MARGIN
    total_width = max(left + width + right, 3 * LETTER * len(grid.title) // 2)
    lines = 2 + LETTER * len(grid.caption) // total_width
    above = 3 + max(text.count("\n") for text in grid.above)
    total_height = height + LINE * (above + lines) + MARGIN
    figure = Figure(figsize=((total_width + 0.5) / DPI, (total_height + 0.5) / DPI), dpi=DPI)
    bottom = LINE * lines + MARGIN
    figure.figimage(canvas_YX3, left, bottom, zorder=-1)
    box = left / total_width, bottom / total_height, width / total_width, height / total_height
    axes = figure.add_axes(box, frameon=False, xlim=(0, width), ylim=(height, 0))
    axes.xaxis.tick_top()
    axes.set_xticks(x_K + tile_width / 2, grid.above)
    axes.set_yticks(y_R + tile_height / 2, grid.beside)
    axes.tick_params(length=0, labelsize=6)
    for texts, y in zip(grid.below, y_R, strict=False):
        for text, x in zip(texts, x_K, strict=True):
            axes.text(
                x + tile_width / 2, y + tile_height + GAP, text, ha="center", va="top", size=6
            )
    figure.suptitle(grid.title, fontsize=8, y=1 - MARGIN / total_height, va="top")
    figure.supxlabel(grid.caption, fontsize=6, y=MARGIN / total_height, va="bottom", wrap=True)
    return _save_png(figure, DPI)


MAX_MARKERS = 12  # points of a curve of which each is shown
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of quantiles
BAND = "5% to 95%"  # of curves by iteration
BAR = 0.22  # inches of a bar and what is below it


@dataclass(frozen=True)
class BandedCurve:
    """middle, low, high at x. control: a value to compare all of the curve with, drawn dotted.
    colour: its place among the styles; None: that among the curves of its panel.
    """

    label: str
    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    control: float | None = None
    colour: int | None = None


@dataclass(frozen=True)
class Spread:
    """Of many numbers for each iteration. mean, std: [T]; quantiles: [5, T], at LEVELS."""

    mean: np.ndarray
    std: np.ndarray
    quantiles: np.ndarray

    def collect_arrays(self, name: str) -> dict[str, np.ndarray]:
        """NAME.mean, NAME.std and NAME.quantiles."""
        return {f"{name}.{key}": array for key, array in vars(self).items()}

    def make_curve(self, label: str, control: float | None = None) -> BandedCurve:
        """The means by iteration; band: from the first of LEVELS to the last."""
        iterations = np.arange(1, len(self.mean) + 1)
        return BandedCurve(
            label, iterations, self.mean, self.quantiles[0], self.quantiles[-1], control
        )


@dataclass(frozen=True)
class Panel:
    """Some curves. A band that reaches zero is cut off in a log scale. along: what x is, where it
    is not that of the other panels.
    """

    quantity: str
    curves: Sequence[BandedCurve]
    scale: Literal["linear", "log"] = "linear"
    along: str = ""


@dataclass(frozen=True)
class Bars:
    """Bars from zero to `middle`, a line below another, with whiskers from low to high. colours:
    the place of each among the curves of other panels.
    """

    quantity: str
    labels: Sequence[str]
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    colours: Sequence[int]


def draw_panels(panels: Sequence[Panel | Bars], along: str, title: str, caption: str) -> bytes:
    """The PNG. along: what x is."""
    from matplotlib.figure import Figure

    lines = max((len(panel.labels) for panel in panels if isinstance(panel, Bars)), default=0)
    size = 4.2 * len(panels), max(3.9, 1.5 + BAR * lines)
    figure = Figure(figsize=size, layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if isinstance(panel, Bars):
            _draw_bars(axes, panel)
        else:
            _draw_panel(axes, panel, panel.along or along)
        axes.tick_params(labelsize=7, which="both")
        axes.grid(color="0.9", linewidth=0.5)
    return finish_figure(figure, title, caption)


def _draw_panel(axes: "Axes", panel: Panel, along: str) -> None:
    from matplotlib.ticker import MaxNLocator

    for number, curve in enumerate(panel.curves):
        _draw_curve(axes, number if curve.colour is None else curve.colour, curve)
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


def _draw_bars(axes: "Axes", bars: Bars) -> None:
    y = np.arange(len(bars.labels))
    ends = np.maximum([bars.middle - bars.low, bars.high - bars.middle], 0)
    colours = [palette.choose_style(place).colour for place in bars.colours]
    axes.barh(y, bars.middle, xerr=ends, color=colours, height=0.7, error_kw={"capsize": 2})
    axes.set_yticks(y, bars.labels)
    axes.set_ylim(len(y) - 0.5, -0.5)  # the first above
    axes.set_axisbelow(True)
    axes.set_xlabel(bars.quantity, fontsize=8)


def _draw_curve(axes: "Axes", number: int, curve: BandedCurve) -> None:
    style = palette.choose_style(number)
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


def finish_figure(figure: "Figure", title: str, caption: str) -> bytes:
    """The PNG of a figure of panels, with its title above and its caption below."""
    figure.suptitle(title, fontsize=9)
    figure.supxlabel(caption, fontsize=6, wrap=True)
    return _save_png(figure, 150)


def _save_png(figure: "Figure", dpi: int) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi)
    return file.getvalue()
