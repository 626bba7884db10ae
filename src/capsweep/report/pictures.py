"""Images in rows and columns, as a PNG.

Shape letters: R rows, K columns, C H W image; X Y the canvas.
"""

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DPI = 200
GAP = 4  # pixels between pictures
SIDE = 112  # pixels: about as high as a picture is drawn
SCALED = "standardised inputs are scaled to their own range, of stereo images the first is shown"
LETTER, LINE, MARGIN = 9, 26, 16  # pixels of a letter and of a line of text, and around all


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
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    # All of the figure; what is written around it enlarges the picture when that is saved.
    axes = figure.add_axes((0, 0, 1, 1), frameon=False)
    axes.imshow(canvas_YX3, extent=(0, width, height, 0), interpolation="nearest")
    axes.xaxis.tick_top()
    axes.set_xticks(x_K + tile_width / 2, grid.above)
    axes.set_yticks(y_R + tile_height / 2, grid.beside)
    axes.tick_params(length=0, labelsize=6)
    for texts, y in zip(grid.below, y_R, strict=False):
        for text, x in zip(texts, x_K, strict=True):
            place = (x + tile_width / 2, y + tile_height + GAP)
            axes.text(*place, text, ha="center", va="top", size=6)
    axes.set_title(grid.title, fontsize=8, pad=LINE / 2)
    caption = textwrap.fill(grid.caption, max(40, width // LETTER))
    axes.set_xlabel(caption, fontsize=6, labelpad=LINE / 2 if grid.below else None)
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight", pad_inches=MARGIN / DPI)
    return file.getvalue()
