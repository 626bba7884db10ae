"""The picture of `capsweep eval routing SWEEP`: entropy and variety of couplings, and the error by
number of iterations at test, of every row of the sweep's table.

Shape letters: T numbers of iterations.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation import pictures
from capsweep.lab.evaluation.pictures import BandedCurve, Bars, Panel

CAPTION = (
    "entropy of the shares of a child by that of equal shares; variety: the part of the variance "
    "of couplings that is between images, no bar where all couplings are equal; error of the same "
    "weights routed with other numbers of iterations, of routings that have them\n"
    "mean over seeds, whiskers and bands: lowest to highest seed"
)


def draw_routing(rows: Mapping[str, Sequence[Mapping[str, Any]]], title: str) -> bytes:
    """The PNG. rows: the contents of routing.json of the cells of each row, by its label.

    Raises NotApplicableError where no cell routes.
    """
    filled = {label: contents for label, contents in rows.items() if contents}
    if not filled:
        raise NotApplicableError("no cell of it routes")
    panels: list[Panel | Bars] = [
        make_bars(filled, "entropy", "entropy / that of equal shares"),
        make_bars(filled, "variety", "variety between images"),
    ]
    curves = [
        make_error_curve(label, colour, contents)
        for colour, (label, contents) in enumerate(filled.items())
        if contents[0]["iterations"] is not None
    ]
    if curves:
        panels.append(Panel("test error", curves))
    return pictures.draw_panels(panels, "routing iterations at test", title, CAPTION)


def make_bars(rows: Mapping[str, Sequence[Mapping[str, Any]]], measure: str, quantity: str) -> Bars:
    """A bar for each row and layer."""
    labels, values, colours = [], [], []
    for colour, (label, contents) in enumerate(rows.items()):
        layers = contents[0]["layers"]
        for name in layers:
            labels.append(label if len(layers) == 1 else f"{label} · {name}")
            values.append([content["layers"][name][measure] for content in contents])
            colours.append(colour)
    middle, low, high = summarise_seeds(values)
    return Bars(quantity, labels, middle, low, high, colours)


def make_error_curve(label: str, colour: int, contents: Sequence[Mapping[str, Any]]) -> BandedCurve:
    """Errors [T] at the numbers of iterations."""
    numbers = [answer["iterations"] for answer in contents[0]["iterations"]]
    by_number = zip(*(content["iterations"] for content in contents), strict=True)
    values = [[answer["error"] for answer in answers] for answers in by_number]
    return BandedCurve(label, np.array(numbers), *summarise_seeds(values), colour=colour)


def summarise_seeds(
    values: Sequence[Sequence[float | None]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, lowest and highest of the seeds that have a number, NaN where none has one."""
    numbers = [[value for value in seeds if value is not None] or [np.nan] for seeds in values]
    mean, low, high = (np.array([f(seeds) for seeds in numbers]) for f in (np.mean, np.min, np.max))
    return mean, low, high
