"""A PNG of pictures in rows and columns, each pixel of a picture a whole number of the PNG's.

Shape letters: R rows, K columns, C H W picture; X Y the PNG.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
from matplotlib.figure import Figure

DPI = 200
POINTS, TITLE, CAPTION = 7.0, 1.1, 0.85  # of the text; the others in its size
LINE, WIDTH = 1.3, 0.62  # of a line of text and of a letter, in its size
GAP, WIDE, MARGIN = 4, 28, 16  # pixels between pictures, between groups of columns, around all
STEP = 25  # a whole number of inches / 8: what is drawn is then as large as what was asked for


@dataclass(frozen=True)
class Grid:
    """tiles_RKHW3: in 0..1; NaN is left white. beside: a text for each row; above: for each column;
    below: for each picture, or for none.

    groups: columns that a wider gap comes before. side: about how many pixels a picture has.
    """

    tiles_RKHW3: np.ndarray
    beside: Sequence[str]
    above: Sequence[str]
    title: str
    caption: str
    groups: Sequence[int] = ()
    side: int = 112
    below: Sequence[Sequence[str]] = ()


def rgb(images_KCHW: np.ndarray) -> np.ndarray:
    """[K, H, W, 3] of images in 0..1: colours of three channels, else the first channel in grey."""
    channels = (0, 1, 2) if images_KCHW.shape[1] == 3 else (0, 0, 0)
    return images_KCHW[:, channels].transpose(0, 2, 3, 1).clip(0, 1)


def own_range(images_KCHW: np.ndarray) -> tuple[np.ndarray, str]:
    """Images to be shown, and what the caption must say of them.

    Images that leave 0..1, since each was standardised, are scaled to their own range.
    """
    said = "of the two stereo images the first is shown" if images_KCHW.shape[1] == 2 else ""
    if images_KCHW.min() >= 0 and images_KCHW.max() <= 1:
        return images_KCHW, said
    low, high = (f(images_KCHW, axis=(1, 2, 3), keepdims=True) for f in (np.min, np.max))
    scaled = (images_KCHW - low) / np.maximum(high - low, np.finfo(np.float32).tiny)
    told = "inputs were standardised and are shown scaled to their own range, drawings in 0..1"
    return scaled, "; ".join(text for text in (told, said) if text)


def draw(grid: Grid, file: IO[bytes]) -> None:
    """Write the PNG."""
    rows, columns, height, width, _ = grid.tiles_RKHW3.shape
    zoom = max(1, round(grid.side / max(height, width)))
    size = POINTS * DPI / 72
    above = max(text.count("\n") + 1 for text in grid.above)
    left = MARGIN + round(WIDTH * size * max(len(text) for text in grid.beside))
    top = MARGIN + round(LINE * size * (above + 1.5))
    x_K = left + np.arange(columns) * (zoom * width + GAP)
    for group in filter(None, grid.groups):  # none is before the first column
        x_K[group:] += WIDE
    below = round(LINE * CAPTION * size) if grid.below else 0
    y_R = top + np.arange(rows) * (zoom * height + below + GAP)
    right, bottom = (
        int(x_K[-1]) + zoom * width + MARGIN,
        int(y_R[-1]) + zoom * height + below + MARGIN,
    )
    total = _whole(max(right, 2 * MARGIN + WIDTH * TITLE * size * len(grid.title)))
    letters = int((total - 2 * MARGIN) / (0.9 * WIDTH * CAPTION * size))
    caption = textwrap.wrap(grid.caption, letters)
    whole = _whole(bottom + LINE * CAPTION * size * len(caption) + MARGIN)
    canvas = np.ones((whole, total, 3))
    for tiles_KHW3, y in zip(grid.tiles_RKHW3, y_R, strict=True):
        for tile_HW3, x in zip(tiles_KHW3, x_K, strict=True):
            large = tile_HW3.repeat(zoom, axis=0).repeat(zoom, axis=1)
            canvas[y : y + zoom * height, x : x + zoom * width] = np.nan_to_num(large, nan=1.0)
    figure = Figure(figsize=(total / DPI, whole / DPI), dpi=DPI)
    figure.figimage(canvas)

    def write(x: float, y: float, text: str, ha: str, va: str, points: float = POINTS) -> None:
        figure.text(x / total, 1 - y / whole, text, fontsize=points, ha=ha, va=va)

    write(MARGIN, MARGIN, grid.title, "left", "top", TITLE * POINTS)
    for x, text in zip(x_K, grid.above, strict=True):
        write(x + zoom * width / 2, top - GAP, text, "center", "bottom")
    for y, text in zip(y_R, grid.beside, strict=True):
        write(left - 2 * GAP, y + zoom * height / 2, text, "right", "center")
    for texts, y in zip(grid.below, y_R, strict=False):
        for text, x in zip(texts, x_K, strict=True):
            under = y + zoom * height + GAP
            write(x + zoom * width / 2, under, text, "center", "top", CAPTION * POINTS)
    write(MARGIN, bottom, "\n".join(caption), "left", "top", CAPTION * POINTS)
    figure.savefig(file, format="png", dpi=DPI)


def _whole(pixels: float) -> int:
    """So many pixels or a few more."""
    return STEP * int(np.ceil(pixels / STEP))
