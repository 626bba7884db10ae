"""Arms that stop where the baseline is as good: `matched: true` in a sweep file.

"Matrix capsules with EM routing", section 5.1, and "Dynamic Routing Between Capsules", section 5.2,
compare networks at equal accuracy: the baseline trains first, then each cell of a matched arm until
its validation accuracy is that of the baseline's finished cell of the same column and seed. So its
`stop_accuracy`, and with it its signature, is known when that cell is finished, and not before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from capsweep.config import places
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Ledger
from capsweep.sweep.expand import ACCURACY, Point, is_waiting
from capsweep.sweep.spec import Sweep

METRIC = "val/error"
DIGITS = 9  # of an accuracy; far less than one example is of any data set

Field = tuple[object, ...]  # a column and a seed


def set_accuracies(sweep: Sweep, points: Sequence[Point]) -> list[Point]:
    """The points, in which each that waits has the accuracy of the baseline's cell, if finished.

    Raises ConfigError where the baseline has no such cell, or one that measures no accuracy.
    """
    if not any(point.waits for point in points):
        return list(points)
    ledger = Ledger(places.resolve(points[0].cell.config["places"]).ledger)
    baselines: dict[Field, Point] = {}
    for point in points:
        if point.arm == sweep.baseline:
            baselines.setdefault(_field_of(sweep, point), point)
    return [_set_accuracy(sweep, p, baselines, ledger) if p.waits else p for p in points]


def check_rerun(sweep: Sweep, points: Sequence[Point]) -> None:
    """Raise ConfigError where the baseline's cells would run again after they were read."""
    rerun = points[0].cell.config["rerun"]
    if rerun != "never" and any(is_waiting(sweep, arm) for arm in sweep.arms):
        raise ConfigError(
            f"RERUN={rerun}: {sweep.path.name} has arms that are matched to finished cells of "
            f"{sweep.baseline}; remove those (capsweep ledger rm), and leave RERUN out"
        )


def _field_of(sweep: Sweep, point: Point) -> Field:
    return (*map(point.coordinate, sweep.columns), point.seed)


def _set_accuracy(
    sweep: Sweep, point: Point, baselines: Mapping[Field, Point], ledger: Ledger
) -> Point:
    where = f"{sweep.path.name}: arms.{point.arm}.matched: {point.name}"
    baseline = baselines.get(_field_of(sweep, point))
    if baseline is None:
        raise ConfigError(f"{where}: {sweep.baseline} has no cell of this column and seed")
    result = ledger.read_result(baseline.cell.signature)
    if result is None:
        return point
    if METRIC not in result["metrics"]:
        raise ConfigError(f"{where}: the cell of {baseline.name} has no {METRIC} to be matched to")
    accuracy = round(1 - result["metrics"][METRIC], DIGITS)
    return replace(point, cell=point.compose_with(ACCURACY, accuracy), waits=False)
