"""The table of a sweep: rows and columns as its file says, every number with n, mean and std."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Entry, Ledger
from capsweep.statistics import metric_format
from capsweep.statistics.metric_format import Measure
from capsweep.statistics.seeds import (
    PairedDifference,
    Summary,
    adjust_holm,
    paired_difference,
    summarise_values,
)
from capsweep.sweep import matched
from capsweep.sweep.expand import Point, as_coordinate, check_distinct_fields
from capsweep.sweep.spec import Sweep

COUNTED = ("done", "stale")  # a cell that a search stopped early is never averaged


@dataclass(frozen=True)
class CellGroup:
    """One field: what is there by seed, of `wanted` seeds, and causes of failures.

    difference: to the baseline over common seeds; p: of its t test, adjusted over the rows.
    unmeasured: its cells are finished, and have no such metric. cells: signatures, by seed, of
    those that are not there too. accuracies: of the validation examples, where arms are matched.
    """

    wanted: int
    by_seed: Mapping[int, float]
    causes: tuple[str, ...]
    stale: int = 0
    difference: PairedDifference | None = None
    p: float | None = None
    unmeasured: bool = False
    cells: Mapping[int, str] = field(default_factory=dict)
    accuracies: tuple[float, ...] = ()

    @cached_property
    def summary(self) -> Summary | None:
        """n, mean, deviation and interval; None when nothing is there."""
        return summarise_values(list(self.by_seed.values())) if self.by_seed else None

    @property
    def is_complete(self) -> bool:
        """Whether every seed is there."""
        return len(self.by_seed) == self.wanted


@dataclass(frozen=True)
class TableRow:
    """Coordinates in the order of `table.rows`, a value per column, published numbers beside."""

    coordinates: tuple[Any, ...]
    values: tuple[CellGroup | None, ...]
    published: tuple[str, ...]


@dataclass(frozen=True)
class ResultTable:
    """What a sweep answers. baseline: the row that differences are to; None when it is absent.

    stopping: how seeds were added, when that was decided by looking at results. footnotes: what
    must be said of data sets, by their name.
    """

    sweep: Sweep
    columns: tuple[tuple[Any, ...], ...]
    rows: tuple[TableRow, ...]
    baseline: int | None
    stopping: str | None = None
    footnotes: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_matched(self) -> bool:
        """Whether some arm stops at the accuracy of the baseline; then accuracies are shown."""
        return any(arm.matched for arm in self.sweep.arms)

    @property
    def measure(self) -> Measure:
        """How its numbers are written."""
        return metric_format.measure_of(self.sweep.metric)


def build_table(
    sweep: Sweep, points: Sequence[Point], ledger: Ledger, stopping: str | None = None
) -> ResultTable:
    """Collect the finished cells of a sweep.

    Raises ConfigError for a metric that they lack, or for different cells in one field.
    """
    entries = ledger.entries_of(point.cell for point in points)
    _check_measured(sweep, entries.values())
    grid = group_points(sweep, points)
    ours = (tuple(map(p.coordinate, sweep.rows)) for p in points if p.arm == sweep.baseline)
    baseline = next(ours, None)
    columns = tuple(dict.fromkeys(column for row in grid.values() for column in row))
    values = {
        row: [_collect_value(sweep, by_column.get(column), entries) for column in columns]
        for row, by_column in grid.items()
    }
    if baseline is not None:
        values = _compare_rows(values, baseline)
    rows = tuple(TableRow(row, tuple(values[row]), format_published(sweep, row)) for row in grid)
    index = None if baseline is None else list(grid).index(baseline)
    notes = dataset_notes(points) | _composed_test_sets(points, entries)
    return ResultTable(sweep, columns, rows, index, stopping, notes)


def dataset_notes(points: Sequence[Point]) -> dict[str, str]:
    """What must be said of the data sets of some points, by their name."""
    datasets = [point.cell.config["dataset"] for point in points]
    return {d["name"]: d["footnote"] for d in datasets if "footnote" in d}


def _composed_test_sets(points: Sequence[Point], entries: Mapping[str, Entry]) -> dict[str, str]:
    """Which test images that no file holds the finished cells were tested on."""
    found: dict[str, list[str]] = {}
    for point in points:
        result = entries[point.cell.signature].result
        if result is not None and (sha256 := result.get("test_sha256")):
            found.setdefault(point.cell.config["dataset"]["name"], []).append(sha256)
    return {
        f"test set of {name}": f"composed, sha256 {', '.join(dict.fromkeys(hashes))}"
        for name, hashes in found.items()
    }


def _check_measured(sweep: Sweep, entries: Iterable[Entry]) -> None:
    """A metric that some cells lack is a gap of the table; one that all lack is misspelt."""
    found = [e.result["metrics"] for e in entries if e.status in COUNTED and e.result is not None]
    if found and not any(sweep.metric in metrics for metrics in found):
        known = sorted({name for metrics in found for name in metrics})
        raise ConfigError(
            f"{sweep.path.name}: table.metric: {sweep.metric} is not measured; "
            f"have {', '.join(known)}"
        )


def group_points(
    sweep: Sweep, points: Sequence[Point]
) -> dict[tuple[Any, ...], dict[tuple[Any, ...], list[Point]]]:
    """The points of each row, by column: coordinates in the order of the sweep's table.

    Raises ConfigError for different cells of one seed in one field.
    """
    check_distinct_fields(sweep, points)
    grid: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Point]]] = {}
    for point in points:
        row, column = (tuple(map(point.coordinate, k)) for k in (sweep.rows, sweep.columns))
        grid.setdefault(row, {}).setdefault(column, []).append(point)
    return grid


def _collect_value(
    sweep: Sweep, points: list[Point] | None, entries: Mapping[str, Entry]
) -> CellGroup | None:
    if points is None:
        return None
    cells = one_per_seed(points)
    by_seed, causes, stale, unmeasured = {}, [], 0, False
    errors: list[float] = []
    for seed, signature in cells.items():
        entry = entries[signature]
        if entry.status in COUNTED and entry.result is not None:
            errors += [e for e in [entry.result["metrics"].get(matched.METRIC)] if e is not None]
            if sweep.metric not in entry.result["metrics"]:
                unmeasured = True
                continue
            by_seed[seed] = _read_metric(sweep, signature, entry.result)
            stale += entry.status == "stale"
        elif entry.cause is not None:
            causes.append(entry.cause)
    told = tuple(dict.fromkeys(causes))
    gap = unmeasured and not by_seed
    accuracies = tuple(1 - error for error in errors)
    return CellGroup(
        len(cells), by_seed, told, stale, unmeasured=gap, cells=cells, accuracies=accuracies
    )


def one_per_seed(points: Sequence[Point]) -> dict[int, str]:
    """The signature of each seed's cell in one field; places that mean the same run share it."""
    return {point.seed: point.cell.signature for point in points}


def _compare_rows(
    values: dict[tuple[Any, ...], list[CellGroup | None]], baseline: tuple[Any, ...]
) -> dict[tuple[Any, ...], list[CellGroup | None]]:
    """The values with their differences to the baseline's row, p adjusted within each column."""
    compared = {row: list(fields) for row, fields in values.items()}
    for column, base in enumerate(values[baseline]):
        found: dict[tuple[Any, ...], CellGroup] = {}
        for row, fields in values.items():
            field = fields[column]
            if row != baseline and field is not None and base is not None:
                found[row] = replace(
                    field, difference=paired_difference(field.by_seed, base.by_seed)
                )
        tested = {
            r: d.t_test for r, v in found.items() if (d := v.difference) and d.t_test is not None
        }
        adjusted = dict(zip(tested, adjust_holm(list(tested.values())), strict=True))
        for row, field in found.items():
            compared[row][column] = replace(field, p=adjusted.get(row))
    return compared


def _read_metric(sweep: Sweep, signature: str, result: dict[str, Any]) -> float:
    value = result["metrics"][sweep.metric]
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(
            f"cell {signature}: {sweep.metric} is {value}; remove it and run it again"
        )
    return value


def format_published(sweep: Sweep, coordinates: tuple[Any, ...]) -> tuple[str, ...]:
    """Published values of a row, as they are printed: `0.39 % (mnist)`."""
    written = metric_format.measure_of(sweep.metric)
    found = []
    for number in published_numbers(sweep, coordinates):
        places = ", ".join(str(place) for key, place in number.items() if key != "value")
        found.append(f"{written.format_number(number['value'])}{written.unit} ({places})")
    return tuple(found)


def published_numbers(sweep: Sweep, coordinates: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Those that do not contradict the row's coordinates: `value`, and the columns they name."""
    row = dict(zip(sweep.rows, coordinates, strict=True))
    return [
        {"value": number["value"]} | {key: number[key] for key in sweep.columns if key in number}
        for number in sweep.published.values
        if all(as_coordinate(number.get(key, value)) == value for key, value in row.items())
    ]
