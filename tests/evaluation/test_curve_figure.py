"""Curves with bands, as they are on the page."""

import io

import numpy as np
from PIL import Image

from capsweep.evaluation import curve_figure
from capsweep.evaluation.curve_figure import COLOURS, Curve, Panel


def picture(*panels: Panel) -> np.ndarray:
    """Rows, columns, red green blue."""
    file = io.BytesIO()
    curve_figure.draw(panels, "iteration", "a title", "a caption", file)
    return np.asarray(Image.open(file).convert("RGB"), dtype=int)


def where(drawn: np.ndarray, colour: str) -> np.ndarray:
    """Which pixels have it."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return np.abs(drawn - wanted).max(axis=2) < 8


def test_every_curve_has_a_colour_of_its_own_in_every_panel() -> None:
    x = np.arange(1, 11)
    curves = [
        Curve(f"layer {n}", x, (n + 1.0) / x, (n + 0.8) / x, (n + 1.2) / x, control=n + 1.5)
        for n in range(len(COLOURS))
    ]
    drawn = picture(Panel("change", curves), Panel("change", curves, "log"))
    for half in np.array_split(drawn, 2, axis=1):
        for colour in COLOURS:
            assert where(half, colour).sum() > 150


def test_one_point_has_its_band_too() -> None:
    point = np.array([1.0])
    drawn = picture(Panel("change", [Curve("classes", point, point, point - 0.5, point + 0.5)]))
    rows = np.flatnonzero(where(drawn, COLOURS[0]).any(axis=1))
    assert rows.max() - rows.min() > 200


def test_a_band_that_reaches_zero_is_drawn_in_a_log_scale() -> None:
    x = np.arange(1, 5)
    curve = Curve("classes", x, 1.0 / x, 0.0 * x, 2.0 / x)
    assert where(picture(Panel("change", [curve], "log")), COLOURS[0]).sum() > 150
