"""The table of a sweep: rows and columns as its file says, every number with n, mean and std."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from capsweep.errors import ConfigError
from capsweep.ledger.entry import Entry
from capsweep.ledger.ledger import Ledger
from capsweep.statistics.summary import Summary, summarise
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep


@dataclass(frozen=True)
class Value:
    """One field: the cells that are there, of `wanted` seeds, and causes of failures."""

    wanted: int
    summary: Summary | None
    causes: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every seed is there."""
        return self.summary is not None and self.summary.n == self.wanted


@dataclass(frozen=True)
class Row:
    """Coordinates in the order of `table.rows`, a value per column, published numbers beside."""

    coordinates: tuple[Any, ...]
    values: tuple[Value | None, ...]
    published: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """What a sweep answers."""

    sweep: Sweep
    columns: tuple[tuple[Any, ...], ...]
    rows: tuple[Row, ...]


def build(sweep: Sweep, points: Sequence[Point], ledger: Ledger) -> Table:
    """Collect the finished cells of a sweep. Raises ConfigError for a metric that they lack."""
    entries = {point.cell.signature: ledger.entry(point.cell.signature) for point in points}
    grid: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Point]]] = {}
    for point in points:
        row, column = (tuple(map(point.coordinate, k)) for k in (sweep.rows, sweep.columns))
        grid.setdefault(row, {}).setdefault(column, []).append(point)
    columns = tuple(dict.fromkeys(column for row in grid.values() for column in row))
    rows = tuple(
        Row(
            coordinates,
            tuple(_value(sweep, by_column.get(column), entries) for column in columns),
            _published(sweep, coordinates),
        )
        for coordinates, by_column in grid.items()
    )
    return Table(sweep, columns, rows)


def _value(sweep: Sweep, points: list[Point] | None, entries: dict[str, Entry]) -> Value | None:
    if points is None:
        return None
    signatures = list(dict.fromkeys(point.cell.signature for point in points))
    numbers, causes = [], []
    for signature in signatures:
        entry = entries[signature]
        if entry.result is not None:
            numbers.append(_metric(sweep, entry.result))
        elif entry.cause is not None:
            causes.append(entry.cause)
    summary = summarise(numbers) if numbers else None
    return Value(len(signatures), summary, tuple(dict.fromkeys(causes)))


def _metric(sweep: Sweep, result: dict[str, Any]) -> float:
    metrics = result["metrics"]
    if sweep.metric not in metrics:
        raise ConfigError(
            f"{sweep.path.name}: table.metric: {sweep.metric} is not measured; "
            f"have {', '.join(sorted(metrics))}"
        )
    return metrics[sweep.metric]


def _published(sweep: Sweep, coordinates: tuple[Any, ...]) -> tuple[str, ...]:
    """Published values of a row: those whose coordinates do not contradict it."""
    row = dict(zip(sweep.rows, coordinates, strict=True))
    found = []
    for published in sweep.published.values:
        if all(published.get(key, value) == value for key, value in row.items()):
            places = [str(published[key]) for key in sweep.columns if key in published]
            found.append(f"{100 * published['value']:.2f} % ({', '.join(places)})")
    return tuple(found)
