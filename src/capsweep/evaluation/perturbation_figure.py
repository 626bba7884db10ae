"""Figure 4 of "Dynamic Routing Between Capsules", drawn: a page of one class."""

from typing import IO

import numpy as np

from capsweep.evaluation import picture_grid
from capsweep.evaluation.perturbations import TWEAKS, Perturbed
from capsweep.evaluation.picture_grid import Grid

SIDE = 84  # pixels: there are many pictures


def draw(found: Perturbed, title: str, file: IO[bytes]) -> None:
    """Write a PNG: at the left the input, then a row per dimension, a column per tweak."""
    drawn_DTHW3 = np.stack([picture_grid.rgb(row) for row in found.drawn_DTCHW])
    dimensions, _, height, width, _ = drawn_DTHW3.shape
    shown_D1HW3 = np.full((dimensions, 1, height, width, 3), np.nan)
    image, _ = picture_grid.own_range(found.image_CHW[None])
    shown_D1HW3[0] = picture_grid.rgb(image)
    if found.digit_CHW is not None:
        shown_D1HW3[1] = picture_grid.rgb(found.digit_CHW[None])
    grid = Grid(
        tiles_RKHW3=np.concatenate([shown_D1HW3, drawn_DTHW3], axis=1),
        beside=[f"dimension {d}" for d in range(dimensions)],
        above=["input", *(f"{tweak:+.2f}" if tweak else "0" for tweak in TWEAKS)],
        title=title,
        caption=caption(found),
        groups=[1],
        side=SIDE,
    )
    picture_grid.draw(grid, file)


def caption(found: Perturbed) -> str:
    """Every choice."""
    _, scaled = picture_grid.own_range(found.image_CHW[None])
    said = "correctly" if found.prediction == found.label else f"wrongly, as {found.prediction}"
    told = [
        f"test example {found.place}, classified {said}; drawn from the capsule of its class "
        f"{found.label} alone, of length {found.length:.3g}",
        "each row adds to one dimension of that capsule's pose, from -0.25 to 0.25 by 0.05; its "
        "length changes with it; column 0 is the plain reconstruction",
    ]
    if found.digit_CHW is not None:
        told.append("below the input: the digit of that class alone")
    return "; ".join([*told, scaled] if scaled else told)
