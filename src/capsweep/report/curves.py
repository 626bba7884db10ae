"""Numbers of the report's curves: an epoch's mean over seeds, and how far the seeds spread."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from capsweep.report.cells import FieldCells, KnownCell
from capsweep.statistics import common

Series = Mapping[int, float]  # a number per epoch


@dataclass(frozen=True)
class Curve:
    """mean, low, high: over the seeds, of each epoch that all of them have. epochs: from 1 on.

    lengths: how many epochs the shortest and the longest seed have.
    """

    name: str
    row: int
    epochs: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    seeds: int
    lengths: tuple[int, int]


def over_seeds(name: str, row: int, seeds: Sequence[Series]) -> Curve | None:
    """The curve of some seeds; None where they have no epoch in common.

    An epoch counts when every seed has it, as a finite number.
    """
    values = {e: [series[e] for series in seeds] for e in common.common_places(seeds)}
    values = {e: found for e, found in values.items() if all(map(math.isfinite, found))}
    if not values:
        return None
    lows, highs = [min(v) for v in values.values()], [max(v) for v in values.values()]
    means = (  # of equal numbers, it may be rounded out of them
        min(max(fmean(v), low), high)
        for v, low, high in zip(values.values(), lows, highs, strict=True)
    )
    lengths = [len(series) for series in seeds]
    return Curve(
        name=name,
        row=row,
        epochs=tuple(epoch + 1 for epoch in values),
        mean=tuple(means),
        low=tuple(lows),
        high=tuple(highs),
        seeds=len(seeds),
        lengths=(min(lengths), max(lengths)),
    )


def collect_curves(
    fields: Sequence[FieldCells], series: Callable[[KnownCell], Series]
) -> list[Curve]:
    """A curve for each field of a column of which finished cells have the series."""
    found = []
    for field in fields:
        seeds = [s for cell in field.counted_cells if (s := series(cell))]
        if (curve := over_seeds(field.name, field.row, seeds)) is not None:
            found.append(curve)
    return found


def of_rows(key: str) -> Callable[[KnownCell], Series]:
    """The number at a key of a cell's rows."""
    return lambda cell: {row["epoch"]: row[key] for row in cell.rows if _is_number(row.get(key))}


def split_of(fields: Sequence[FieldCells], name: str) -> str:
    """`val/NAME` where all rows of finished cells have it, else `train/NAME`: like with like."""
    rows = [row for field in fields for cell in field.counted_cells for row in cell.rows]
    validated = bool(rows) and all(f"val/{name}" in row for row in rows)
    return f"{'val' if validated else 'train'}/{name}"


def read_throughput(cell: KnownCell) -> Series:
    """Training images a second of each epoch; empty where the result does not tell how many."""
    result, images = cell.result, 0.0
    if result.get("epochs") and result.keys() >= {"images_per_second", "seconds"}:
        images = result["images_per_second"] * result["seconds"]["fit"] / result["epochs"]
    seconds = of_rows("seconds")(cell)
    return {epoch: images / s for epoch, s in seconds.items() if s > 0} if images else {}


def group_equal_curves(curves: Sequence[Curve]) -> list[tuple[Curve, list[Curve]]]:
    """Curves of the same numbers once, with the others that they stand for."""
    found: dict[Any, list[Curve]] = {}
    for curve in curves:
        found.setdefault((curve.epochs, curve.mean, curve.low, curve.high), []).append(curve)
    return [(same[0], same[1:]) for same in found.values()]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
