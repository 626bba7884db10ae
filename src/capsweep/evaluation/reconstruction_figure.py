"""Figure 3 of "Dynamic Routing Between Capsules", drawn."""

from typing import IO

import numpy as np

from capsweep.evaluation import picture_grid
from capsweep.evaluation.decoded import Columns
from capsweep.evaluation.picture_grid import Grid


def draw(found: Columns, title: str, told: str, file: IO[bytes]) -> None:
    """Write a PNG: inputs above, reconstructions below, label, prediction and decoded class."""
    inputs, _ = picture_grid.own_range(found.images_KCHW)
    rows = inputs, found.drawn_KLCHW[:, 0]
    classes = zip(found.labels_KL, found.predictions_KL, found.from_KL, strict=True)
    grid = Grid(
        tiles_RKHW3=np.stack([picture_grid.rgb(images) for images in rows]),
        beside=("input", "output"),
        above=[f"({label[0]}, {said[0]}, {drawn[0]})" for label, said, drawn in classes],
        title=title,
        caption=told,
        groups=found.failures,
    )
    picture_grid.draw(grid, file)


def caption(found: Columns, total: int, wrong: int) -> str:
    """What the columns are, of a test of `total` examples of which so many are wrong."""
    right = len(found.places_K) - 2 * len(found.failures)
    _, scaled = picture_grid.own_range(found.images_KCHW)
    told = [
        "(l, p, r): label, prediction, and the class whose capsule is drawn, all others masked",
        found.told(right, total, wrong),
    ]
    if found.failures:
        told.append("each failure is drawn from its label's capsule, then from the predicted one")
    told.append(found.told_places)
    return "; ".join([*told, scaled] if scaled else told)
