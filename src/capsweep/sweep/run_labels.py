"""What the W&B runs of a sweep are called."""

from collections.abc import Iterator, Sequence

from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep
from capsweep.tracking import labels as names
from capsweep.tracking.labels import Labels


def of(sweep: Sweep, points: Sequence[Point]) -> dict[str, Labels]:
    """Labels by signature; different cells of a sweep have different names.

    A cell that several places of the grid share is called after the first.
    """
    weights = {names.reconstruction_weight(point.cell.config) for point in points} | {
        *_drawn(sweep)
    }
    found: dict[str, Labels] = {}
    for point in points:
        if point.cell.signature not in found:
            found[point.cell.signature] = _labels(sweep, point, weights)
    return found


def _drawn(sweep: Sweep) -> Iterator[float]:
    """Weights of reconstruction of all cells, of a search too, whose trials come one by one."""
    for arm in sweep.arms:
        for axis in arm.space.axes:
            if axis.key == names.WEIGHT:
                yield from axis.values
        for interval in arm.space.intervals:
            if interval.key == names.WEIGHT:
                yield from (interval.low, interval.high)


def _labels(sweep: Sweep, point: Point, weights: set[float]) -> Labels:
    config, signature = point.cell.config, point.cell.signature
    place = point.title.split(names.SEPARATOR)[1:]
    name = names.run_name(config, point.arm, place, weights, signature)
    return Labels(sweep.name, point.arm, name, sweep.question, names.run_tags(config, sweep.name))
