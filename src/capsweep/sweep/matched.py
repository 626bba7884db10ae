"""Arms that stop where the baseline is as good: `matched: true` in a sweep file.

"Matrix capsules with EM routing", section 5.1, and "Dynamic Routing Between Capsules", section 5.2,
compare networks at equal accuracy: the baseline trains first, then each cell of a matched arm until
its validation accuracy is that of the baseline's finished cell of the same column and seed. So its
`stop_accuracy`, and with it its signature, is known when that cell is finished, and not before.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from capsweep.config import compose, places
from capsweep.config.overrides import render
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Ledger
from capsweep.sweep.arms import Arm

if TYPE_CHECKING:
    from capsweep.sweep.expand import Point
    from capsweep.sweep.spec import Sweep

KEY = "stop_accuracy"
METRIC = "val/error"
WAITING = f"{KEY}=1.0"  # what a cell that waits is planned with; such a one is never run
DIGITS = 9  # of an accuracy; far less than one example is of any data set


def waits(sweep: "Sweep", arm: Arm) -> bool:
    """Whether the cells of an arm wait for the baseline: with a typed accuracy they do not."""
    given = {override.key for override in (*sweep.base, *arm.fixed)} | set(arm.space.keys)
    return arm.matched and KEY not in given


def settle(sweep: "Sweep", points: Sequence["Point"]) -> "list[Point]":
    """The points, in which each that waits has the accuracy of the baseline's cell, if finished.

    Raises ConfigError where the baseline has no such cell, or one that measures no accuracy.
    """
    if not any(point.waits for point in points):
        return list(points)
    ledger = Ledger(places.resolve(points[0].cell.config["places"]).ledger)
    firsts: dict[tuple[object, ...], Point] = {}
    for point in points:
        if point.arm == sweep.baseline:
            firsts.setdefault(_column_and_seed(sweep, point), point)
    return [_settled(sweep, point, firsts, ledger) if point.waits else point for point in points]


def check_rerun(sweep: "Sweep", points: Sequence["Point"]) -> None:
    """Raise ConfigError where the baseline's cells would run again after they were read."""
    rerun = points[0].cell.config["rerun"]
    if rerun != "never" and any(waits(sweep, arm) for arm in sweep.arms):
        raise ConfigError(
            f"RERUN={rerun}: {sweep.path.name} has arms that are matched to finished cells of "
            f"{sweep.baseline}; remove those (capsweep ledger rm), and leave RERUN out"
        )


def _column_and_seed(sweep: "Sweep", point: "Point") -> tuple[object, ...]:
    return (*map(point.coordinate, sweep.columns), point.seed)


def _settled(
    sweep: "Sweep",
    point: "Point",
    firsts: "dict[tuple[object, ...], Point]",
    ledger: Ledger,
) -> "Point":
    where = f"{sweep.path.name}: arms.{point.arm}.matched: {point.name}"
    other = firsts.get(_column_and_seed(sweep, point))
    if other is None:
        raise ConfigError(f"{where}: {sweep.baseline} has no cell of this column and seed")
    result = ledger.read_result(other.cell.signature)
    if result is None:
        return point
    if METRIC not in result["metrics"]:
        raise ConfigError(f"{where}: the cell of {other.name} has no {METRIC} to be matched to")
    accuracy = round(1 - result["metrics"][METRIC], DIGITS)
    kept = [text for text in point.cell.overrides if not text.startswith(f"{KEY}=")]
    cell = compose.cell([*kept, render(KEY, accuracy)])
    return replace(point, cell=cell, waits=False)
