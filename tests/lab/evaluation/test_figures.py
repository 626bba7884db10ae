"""Curves with bands in panels, as they are on the page."""

import numpy as np
import pytest
from png_images import find_colour, read_pixels

from capsweep.lab.evaluation import figures
from capsweep.lab.evaluation.figures import BandedCurve, Panel
from capsweep.report.charts import COLOURS


def draw_png(*parts: Panel) -> np.ndarray:
    return read_pixels(figures.draw_panels(parts, "a title", "a caption"))


def test_every_curve_has_a_colour_of_its_own_in_every_panel() -> None:
    x = np.arange(1, 11)
    lines = [
        BandedCurve(f"layer {n}", x, (n + 1.0) / x, 0 * x, (n + 1.2) / x, control=n + 1.5)
        for n in range(len(COLOURS))
    ]
    pixels = draw_png(Panel("change", lines), Panel("change", lines, "log"))
    for half in np.array_split(pixels, 2, axis=1):
        for colour in COLOURS:
            assert find_colour(half, colour).sum() > 150


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_the_band_of_one_point_is_a_bar(scale: str) -> None:
    def draw_high(curve: BandedCurve) -> int:
        rows = np.nonzero(find_colour(draw_png(Panel("change", [curve], scale)), COLOURS[0]))[0]
        return int(np.ptp(rows[rows > 150]))  # below the legend

    x, middle = np.array([100]), np.array([0.5])
    assert draw_high(BandedCurve("a", x, middle, middle - 0.4, middle + 0.4)) > 150
    assert draw_high(BandedCurve("a", x, middle, middle, middle)) < 50
