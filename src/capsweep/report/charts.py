"""The drawing of charts and of image grids with matplotlib.

Colour-blind readers can distinguish the colours. The same numbers always give the same PNG bytes.
Shape letters: R rows and K columns of pictures; C H W image; Y X height and width of the canvas.
"""

import base64
import importlib.metadata
import io
import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from capsweep.config import code_identity
from capsweep.statistics import metric_format
from capsweep.storage.checked import compute_once

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.6, 2.9  # inches of a panel; at this size, text can be read on a phone
LEGEND_LINE = 0.18  # inches that a line of the legend adds to a figure's height
LETTERS = 9  # points, the size of letters
TICKS = 6  # most ticks on an axis, so that their numbers do not overlap
ROW = 0.22  # height in inches of a row in the figure of a table
DPI = 200
SPREAD = 8.0  # a scale is logarithmic if largest value / smallest value is at least this
OPTIONS: dict[Any, Any] = {
    "font.size": LETTERS,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
}
# The palette of Okabe and Ito (2008) without its yellow, which is hard to see on white paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":")  # 4 lines and 7 colours have no common factor: 28 combinations
MARKERS = "osD^vPX*<>"
SEED, PUBLISHED, OTHER = "one seed", "published", "published, not comparable"
MARKS: dict[str, dict[str, Any]] = {  # the looks of marks in the figure of a table
    SEED: {"marker": ".", "markersize": 5, "color": "#555555"},
    PUBLISHED: {"marker": "D", "markersize": 4, "color": COLOURS[1]},
    OTHER: {"marker": "D", "markersize": 4, "color": COLOURS[1], "fillstyle": "none"},
}
GAP = 4  # pixels between pictures
SIDE = 112  # pixels, the approximate length of the longer side of a drawn image
SCALED = "standardised inputs are scaled to their own range, of stereo images the first is shown"
LETTER, LINE, MARGIN = 9, 26, 16  # pixels: width of a letter, height of a line, outer margin


def choose_style(index: int) -> tuple[str, str, str]:
    """Choose colour, line and marker of a curve; 28 successive indices give different styles."""
    colour, line, marker = (each[index % len(each)] for each in (COLOURS, LINES, MARKERS))
    return colour, line, marker


@dataclass(frozen=True)
class Curve:
    """The curve of a metric by epoch, for one row of a table."""

    name: str  # name of the row, for the legend
    row: int  # index of the row among the drawn rows; the index decides the style
    epochs: tuple[int, ...]  # epochs that all seeds have, counted from 1
    mean: tuple[float, ...]  # mean over the seeds, for each epoch
    low: tuple[float, ...]  # smallest value among the seeds, for each epoch
    high: tuple[float, ...]  # largest value among the seeds, for each epoch


@dataclass(frozen=True)
class PanelRow:
    """A row of a table in one panel of the table's figure.

    Attributes:
        mean: The mean and both ends of its interval; None if some seeds lack the metric.
        marks: The numbers that are drawn as marks, by their kind, which is a key of MARKS.
    """

    mean: tuple[float, float, float] | None
    marks: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Panel:
    """One column of a table, drawn as a panel of the table's figure.

    Attributes:
        title: The text above the panel; empty if the table has only one column.
        rows: The rows that have results in this column, by their place from the top.
        baseline: The place of the baseline, whose mean is a dotted line; None without a baseline.
    """

    title: str
    rows: Mapping[int, PanelRow]
    baseline: int | None


def encode_png(figure: "Figure", **options: Any) -> bytes:
    """Return a figure as a PNG; `options` are those of matplotlib's `savefig`."""
    png = io.BytesIO()
    figure.savefig(png, format="png", **options)
    return png.getvalue()


def draw_once(draw: "Callable[..., Figure]", *numbers: Any) -> bytes:
    """Draw a figure and return its PNG, or read the PNG from the user's cache.

    On one machine, the same numbers are drawn only once. If the PNG is in the cache, matplotlib is
    not imported.

    Args:
        draw: A function that returns the figure. The function's name is part of the key in the
            cache.
        *numbers: The arguments of `draw`: plain data or dataclasses.
    """

    def encode_figure() -> str:
        import matplotlib as mpl

        with mpl.rc_context(OPTIONS):
            return base64.b64encode(encode_png(draw(*numbers), dpi=DPI)).decode()

    inputs = json.dumps([draw.__qualname__, numbers], default=asdict)
    code = [code_identity.hash_package(), importlib.metadata.version("matplotlib")]
    return base64.b64decode(compute_once("figures", f"{code} {inputs}", encode_figure))


def draw_curves(
    label: str, panels: Mapping[str, Sequence[Curve]], most_across: int = 1
) -> "Figure":
    """Draw curves by epoch, each with a band from the lowest to the highest value of its seeds.

    Args:
        label: What the curves show.
        panels: The curves of each panel, by the text above the panel.
        most_across: The largest number of panels side by side.
    """
    from matplotlib.ticker import MaxNLocator

    drawn = {curve.name: curve for curves in panels.values() for curve in curves}
    figure, grid = _make_panels(len(panels), most_across, HEIGHT, LEGEND_LINE * len(drawn))
    handles = {}
    for axes, (title, curves) in zip(grid, panels.items(), strict=True):
        for curve in curves:
            epochs, (colour, line, marker) = curve.epochs, choose_style(curve.row)
            if curve.low != curve.high:
                band = (epochs, curve.low, curve.high)
                axes.fill_between(*band, color=colour, alpha=0.15, linewidth=0)
            # Between two epochs that do not follow each other nothing was measured.
            marker = "" if 1 < len(epochs) == epochs[-1] - epochs[0] + 1 else marker
            (handle,) = axes.plot(epochs, curve.mean, line, color=colour, marker=marker)
            handles[curve.name] = handle
        axes.set_title(title, fontsize=LETTERS, parse_math=False)
        axes.set(xlabel="epoch", ylabel=label)
        # With a single epoch, a second tick would be between two epochs.
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        _set_scale(axes, "y", [value for curve in drawn.values() for value in curve.mean])
    _add_legend(figure, [*handles.values()], [*handles])
    return figure


def draw_panels(
    metric: str, keys: str, names: Sequence[str], panels: Sequence[Panel], most_across: int
) -> "Figure":
    """Draw a panel for each column of a table, with a line for each row, and a legend below.

    Args:
        metric: The metric of the table.
        keys: A text above the panels.
        names: The names of the rows, from the top.
        panels: The columns of the table.
        most_across: The largest number of panels side by side.
    """
    measure, handles = metric_format.measure_of(metric), dict[str, Any]()
    height = 0.8 + ROW * len(names)
    figure, grid = _make_panels(len(panels), most_across, height, ROW + 3 * LEGEND_LINE)
    figure.suptitle(keys, x=0.01, ha="left", fontsize=LETTERS, color="#555555", parse_math=False)
    for axes, panel in zip(grid, panels, strict=True):
        handles |= _draw_panel(axes, panel, measure.factor)
        axes.set_title(panel.title, fontsize=LETTERS, parse_math=False)
        axes.set_xlabel(name_with_unit(metric))
    grid[0].set_yticks(range(len(names)), names, parse_math=False)
    grid[0].set_ylim(len(names) - 0.5, -0.5)
    _add_legend(figure, [*handles.values()], [*handles], columns=2)
    return figure


def draw_matrix(
    percents_RK: list[list[float]], lines: Sequence[str], columns: Sequence[str], is_confusion: bool
) -> "Figure":
    """Draw percentages as a matrix of numbers on colours: the larger, the darker.

    Args:
        percents_RK: The percentages.
        lines: A name for each line.
        columns: A name for each column.
        is_confusion: Whether lines are true and columns are predicted classes; the diagonal, which
            has the right predictions, then has no colour. Else columns are classes.
    """
    shown_RK = np.array(percents_RK)
    coloured_RK = np.where(np.eye(*shown_RK.shape, dtype=bool) & is_confusion, 0, shown_RK)
    longest = max(map(len, columns))
    turned = 90 if longest > 3 else 0
    height = 1 + 0.28 * len(lines) + (0.08 * longest if turned else 0)
    figure = _make_figure(WIDTH, height)
    axes = figure.subplots()
    most = max(coloured_RK.max(), 1)
    axes.imshow(coloured_RK, cmap="Oranges", vmin=0, vmax=1.5 * most, aspect="auto")
    for (line, column), percent in np.ndenumerate(shown_RK):
        text = f"{percent:.1f}" if 0 < percent < 9.95 else f"{percent:.0f}"
        text = "" if is_confusion and percent == 0 else text
        axes.text(column, line, text, ha="center", va="center", fontsize=LETTERS - 2)
    axes.set_xticks(range(len(columns)), columns, rotation=turned, parse_math=False)
    axes.set_yticks(range(len(lines)), lines, parse_math=False)
    across, down = ("predicted", "true class") if is_confusion else ("class", "")
    axes.set(xlabel=across, ylabel=down)
    axes.grid(visible=False)
    return figure


def _draw_panel(axes: "Axes", panel: Panel, factor: float) -> dict[str, Any]:
    """Draw the rows of a panel, and return what was drawn, by its text in the legend."""
    handles = {}
    for kind, look in MARKS.items():
        below = 0.3 if kind == SEED else 0.0  # so that the bar of the interval hides no seed
        points = [(n + below, x) for n, row in panel.rows.items() for x in row.marks.get(kind, ())]
        if points:
            places, values = np.array(points).T
            (handles[kind],) = axes.plot(factor * values, places, linestyle="", **look)
    means = {n: row.mean for n, row in panel.rows.items() if row.mean is not None}
    if means:
        mean, low, high = factor * np.array([*means.values()]).T
        bars, look = (mean - low, high - mean), {"fmt": "o", "markersize": 5, "capsize": 3}
        line = axes.errorbar(mean, [*means], xerr=bars, color=COLOURS[0], **look)
        handles["mean, 95 % interval"] = line
    if panel.baseline in means:
        line = axes.axvline(factor * means[panel.baseline][0], color="#777777", linestyle=":")
        handles["mean of the baseline"] = line
    seeds = [value for row in panel.rows.values() for value in row.marks[SEED]]
    _set_scale(axes, "x", [mean for mean, _, _ in means.values()] or seeds)
    return handles


def name_with_unit(metric: str) -> str:
    """Return the name of a metric with its unit, such as `test/error (%)`."""
    unit = metric_format.measure_of(metric).unit.strip()
    return f"{metric} ({unit})" if unit else metric


def _make_panels(
    count: int, most_across: int, height: float, rest: float
) -> tuple["Figure", list["Axes"]]:
    """Make a figure of several panels with a common vertical axis.

    Args:
        count: The number of panels.
        most_across: The largest number of panels side by side.
        height: The height of a panel in inches.
        rest: The height in inches of what is above and below all panels.
    """
    across = min(count, most_across)
    down = math.ceil(count / across)
    figure = _make_figure(WIDTH * (1 + across) / 2, height * down + rest)
    grid = figure.subplots(down, across, sharey=True, squeeze=False).flat
    for axes in grid[count:]:
        axes.remove()
    return figure, list(grid[:count])


def _make_figure(width: float, height: float) -> "Figure":
    """Make a figure of a size in inches. Its panels leave room for its texts and its legend."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _add_legend(
    figure: "Figure", handles: Sequence[Any], names: Sequence[str], columns: int = 1
) -> None:
    """Put a legend below the panel; a `$` in a name is printed, not read as mathematics."""
    labels = [f" {name}" for name in names]  # matplotlib would leave out a name that begins with _
    look = {"loc": "outside lower left", "frameon": False, "fontsize": LETTERS}
    box = figure.legend(handles, labels, ncols=columns, **look)
    for text in box.get_texts():
        text.set_parse_math(False)


def _set_scale(axes: "Axes", which: Literal["x", "y"], values: Sequence[float]) -> None:
    """Set the ticks of an axis; make the axis logarithmic if values are positive and far apart."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    if min(values) <= 0 or max(values) / min(values) < SPREAD:
        axis.set_major_locator(MaxNLocator(TICKS))
        return
    axes.set(**{f"{which}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def to_rgb(images_KCHW: np.ndarray) -> np.ndarray:
    """Return images as RGB with values in 0..1 and the shape [K, H, W, 3].

    Values outside 0..1 are clipped. Images with three channels keep their colours. Of all other
    images, the first channel is shown in grey.
    """
    channels = (0, 1, 2) if images_KCHW.shape[1] == 3 else (0, 0, 0)
    return images_KCHW[:, channels].transpose(0, 2, 3, 1).clip(0, 1)


def scale_images(images_KCHW: np.ndarray) -> np.ndarray:
    """Scale the values of images to 0..1, each image by its own least and greatest value.

    If all values of all images are in 0..1 already, the images are returned unchanged.
    """
    if images_KCHW.min() >= 0 and images_KCHW.max() <= 1:
        return images_KCHW
    low, high = (f(images_KCHW, axis=(1, 2, 3), keepdims=True) for f in (np.min, np.max))
    return (images_KCHW - low) / np.maximum(high - low, np.finfo(np.float32).tiny)


def draw_grid(
    tiles_RKHW3: np.ndarray,
    beside: Sequence[str],
    above: Sequence[str],
    title: str,
    caption: str,
    side: int = SIDE,
) -> bytes:
    """Draw a grid of colour images with texts around it, and return the PNG.

    Args:
        tiles_RKHW3: Images with values in 0..1; NaN is drawn white.
        beside: A text for each row.
        above: A text for each column.
        title: The text above the grid.
        caption: The text below the grid.
        side: The approximate length of the longer side of a drawn image, in pixels.
    """
    from matplotlib.figure import Figure

    rows, columns, height, width, _ = tiles_RKHW3.shape
    zoom = max(1, round(side / max(height, width)))
    large_RKHW3 = np.nan_to_num(tiles_RKHW3, nan=1.0).repeat(zoom, 2).repeat(zoom, 3)
    gaps = ((0, 0), (0, 0), (0, GAP), (0, GAP), (0, 0))
    spaced_RKHW3 = np.pad(large_RKHW3, gaps, constant_values=1.0)
    step_y, step_x = spaced_RKHW3.shape[2:4]
    height, width = rows * step_y, columns * step_x
    canvas_YX3 = spaced_RKHW3.swapaxes(1, 2).reshape(height, width, 3)
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    # The axes fill the figure; the texts around them enlarge the picture when it is saved.
    axes = figure.add_axes((0, 0, 1, 1), frameon=False)
    axes.imshow(canvas_YX3, extent=(0, width, height, 0), interpolation="nearest")
    axes.xaxis.tick_top()
    axes.set_xticks((np.arange(columns) + 0.5) * step_x - GAP / 2, above)
    axes.set_yticks((np.arange(rows) + 0.5) * step_y - GAP / 2, beside)
    axes.tick_params(length=0, labelsize=6)
    axes.set_title(title, fontsize=8, pad=LINE / 2)
    axes.set_xlabel(textwrap.fill(caption, max(40, width // LETTER)), fontsize=6)
    return encode_png(figure, bbox_inches="tight", pad_inches=MARGIN / DPI)
