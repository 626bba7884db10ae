"""Figure 5 of "Dynamic Routing Between Capsules", drawn."""

from collections.abc import Iterable
from typing import IO

import numpy as np

from capsweep.evaluation import picture_grid, segmentation
from capsweep.evaluation.picture_grid import Grid
from capsweep.evaluation.segmentation import Segmented


def draw(found: Segmented, title: str, told: str, file: IO[bytes]) -> None:
    """Write a PNG: inputs above; below, the two drawn digits in red and green."""
    columns = found.columns
    inputs, _ = picture_grid.own_range(columns.images_KCHW)
    rows = picture_grid.rgb(inputs), segmentation.overlaid(columns.drawn_KLCHW)
    grid = Grid(
        tiles_RKHW3=np.stack(rows),
        beside=("input", "output"),
        above=_above(found),
        title=title,
        caption=told,
        groups=_groups(found),
    )
    picture_grid.draw(grid, file)


def caption(found: Segmented, total: int, wrong: int, asked: int) -> str:
    """What the columns are, of a test of `total` examples of which so many are wrong.

    asked: how many starred columns were.
    """
    columns, starred = found.columns, int(found.starred_K.sum())
    right = len(columns.places_K) - starred - 2 * len(columns.failures)
    told = [
        "L: labels; R: the classes whose capsules are drawn one by one, all others masked, the "
        "first in red, the second in green, pixels of both in yellow",
        f"{columns.told(right, total, wrong)} (correct: the two most active classes are the "
        "labels)",
    ]
    if starred:
        told.append(
            f"*: the next {starred} correct ones, the second label replaced by the most active "
            "class that is neither label nor prediction"
        )
    if starred < asked:
        shown = f"only {starred}" if starred else "none"
        told.append(
            f"{shown} of the {asked} columns asked for with a class that is not there (*) can be "
            f"drawn: the test has {total - wrong} correct examples"
        )
    if columns.failures:
        told.append("each failure is drawn from its labels, then from the predictions (P)")
    if (known := found.overlap_KL[~np.isnan(found.overlap_KL)]).size:
        told.append(
            f"mean overlap with the true digits (intersection over union of non-zero pixels): "
            f"{known.mean():.2f} of the labels drawn here"
        )
    return "; ".join([*told, columns.told_places])


def _above(found: Segmented) -> list[str]:
    columns = found.columns
    texts = []
    for k, (drawn, labels) in enumerate(zip(columns.from_KL, columns.labels_KL, strict=True)):
        mark = "*" if found.starred_K[k] else ""
        from_prediction = "P:" if k - 1 in columns.failures else ""
        texts.append(f"{mark}R:{from_prediction}{_pair(drawn)}\nL:{_pair(labels)}")
    return texts


def _groups(found: Segmented) -> list[int]:
    return [*np.flatnonzero(found.starred_K)[:1].tolist(), *found.columns.failures]


def _pair(classes: Iterable[int]) -> str:
    return f"({','.join(str(one) for one in classes)})"
