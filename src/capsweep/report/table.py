"""The table of a sweep: rows and columns as its file says, every number with n, mean and std."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from capsweep.ledger.ledger import Entry, Ledger
from capsweep.report import circumstances
from capsweep.report.published import PublishedNumber, find_published
from capsweep.statistics import metric_format
from capsweep.statistics.metric_format import Measure
from capsweep.statistics.seeds import (
    PairedDifference,
    Summary,
    adjust_holm,
    paired_difference,
    summarise_values,
)
from capsweep.sweep.expand import MATCHED_METRIC, Point, check_distinct_fields
from capsweep.sweep.spec import Sweep

COUNTED = ("done", "stale")  # a cell that a search stopped early is never averaged


@dataclass(frozen=True)
class CellGroup:
    """One field. points: its cells, one of each seed, which differ in that alone; by_seed: the
    metric of those that are there; causes: of failures; stale: how many other code made.

    unmeasured: its cells are finished, and have no such metric. accuracies: of the validation
    examples. difference: to the baseline over common seeds; p: of its t test, adjusted over the
    rows. measure: of the metric.
    """

    points: Sequence[Point]
    measure: Measure
    by_seed: Mapping[int, float]
    causes: Sequence[str]
    stale: int
    unmeasured: bool
    accuracies: Sequence[float]
    difference: PairedDifference | None = None
    p: float | None = None

    @cached_property
    def cells(self) -> dict[int, str]:
        """Signatures by seed, of those that are not there too."""
        return {point.seed: point.cell.signature for point in self.points}

    @cached_property
    def summary(self) -> Summary | None:
        """n, mean, deviation and interval; None when nothing is there."""
        bounds = self.measure.low, self.measure.high
        return summarise_values(list(self.by_seed.values()), *bounds) if self.by_seed else None

    @property
    def full_summary(self) -> Summary | None:
        """The summary where every seed is there; a table shows no mean of some of them."""
        return self.summary if len(self.by_seed) == len(self.points) else None


@dataclass(frozen=True)
class TableRow:
    """Coordinates in the order of `table.rows`, a value per column, published numbers beside."""

    coordinates: tuple[Any, ...]
    values: tuple[CellGroup | None, ...]
    published: tuple[PublishedNumber, ...]


@dataclass(frozen=True)
class ResultTable:
    """What a sweep answers. baseline: the row that differences are to; None when it is absent.

    stopping: how seeds were added, when that was decided by looking at results. footnotes: what
    must be said of data sets, by their name, and of what cells were made by.
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
    def groups(self) -> list[CellGroup]:
        """The fields that have cells, row by row."""
        return [group for row in self.rows for group in row.values if group is not None]

    @property
    def points(self) -> list[Point]:
        """The cells behind it; one that stands in two rows twice."""
        return [point for group in self.groups for point in group.points]

    @property
    def has_published(self) -> bool:
        """Whether any row has published numbers beside it."""
        return any(row.published for row in self.rows)

    @property
    def measure(self) -> Measure:
        """How its numbers are written."""
        return metric_format.measure_of(self.sweep.metric)


def build_table(
    sweep: Sweep, points: Sequence[Point], ledger: Ledger, stopping: str | None = None
) -> ResultTable:
    """Collect the finished cells of a sweep.

    Raises ConfigError for different cells in one field, UserError for cells of different data.
    """
    entries = ledger.entries_of(point.cell for point in points)
    grid = group_points(sweep, points)
    columns = tuple(dict.fromkeys(column for row in grid.values() for column in row))
    groups = [
        [_collect_group(sweep, by_column.get(column, ()), entries) for column in columns]
        for by_column in grid.values()
    ]
    first = next((p for p in points if p.arm == sweep.baseline), None)
    baseline = first and list(grid).index(tuple(map(first.coordinate, sweep.rows)))
    if baseline is not None:
        compared = (_compare_column(each, baseline) for each in zip(*groups, strict=True))
        groups = zip(*compared, strict=True)
    rows = tuple(
        TableRow(
            row, tuple(values), find_published(sweep, [each[0] for each in grid[row].values()])
        )
        for row, values in zip(grid, groups, strict=True)
    )
    notes = dataset_notes(points) | _composed_test_sets(points, entries)
    notes |= circumstances.list_differences(grid, entries, ledger)
    notes |= circumstances.compare_data(points, entries)
    return ResultTable(sweep, columns, rows, baseline, stopping, notes)


def dataset_notes(points: Sequence[Point]) -> dict[str, str]:
    """Return what must be said of the data sets of some points, by their name."""
    datasets = [point.cell.config["dataset"] for point in points]
    return {d["name"]: d["footnote"] for d in datasets if "footnote" in d}


def _composed_test_sets(points: Sequence[Point], entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return which test images that no file holds the finished cells were tested on."""
    hashes: dict[str, dict[str, None]] = {}
    for point in points:
        if sha256 := (entries[point.cell.signature].result or {}).get("test_sha256"):
            name = f"test set of {point.cell.config['dataset']['name']}"
            hashes.setdefault(name, {})[sha256] = None
    return {name: f"composed, sha256 {', '.join(each)}" for name, each in hashes.items()}


def group_points(
    sweep: Sweep, points: Sequence[Point]
) -> dict[tuple[Any, ...], dict[tuple[Any, ...], list[Point]]]:
    """Return the points of each row, by column: coordinates in the order of the sweep's table.

    Raises ConfigError for different cells of one seed in one field.
    """
    check_distinct_fields(sweep, points)
    grid: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Point]]] = {}
    for point in points:
        row, column = (tuple(map(point.coordinate, k)) for k in (sweep.rows, sweep.columns))
        grid.setdefault(row, {}).setdefault(column, []).append(point)
    return grid


def _collect_group(
    sweep: Sweep, points: Sequence[Point], entries: Mapping[str, Entry]
) -> CellGroup | None:
    """Return the cells of one field, one of each seed; places that mean the same run share it."""
    if not points:
        return None
    places = {point.seed: point for point in points}
    entry_of = {seed: entries[point.cell.signature] for seed, point in places.items()}
    counted = {seed: entry.result for seed, entry in entry_of.items() if entry.status in COUNTED}
    finished = {seed: result["metrics"] for seed, result in counted.items() if result}
    by_seed = {
        seed: metrics[sweep.metric] for seed, metrics in finished.items() if sweep.metric in metrics
    }
    causes = (entry.cause for seed, entry in entry_of.items() if seed not in finished)
    errors = (metrics.get(MATCHED_METRIC) for metrics in finished.values())
    return CellGroup(
        list(places.values()),
        metric_format.measure_of(sweep.metric),
        by_seed,
        causes=[cause for cause in dict.fromkeys(causes) if cause is not None],
        stale=sum(entry_of[seed].status == "stale" for seed in by_seed),
        unmeasured=bool(finished) and not by_seed,
        accuracies=[1 - error for error in errors if error is not None],
    )


def _compare_column(
    groups: Sequence[CellGroup | None], baseline: int
) -> Sequence[CellGroup | None]:
    """Return the fields of a column with differences to the baseline's, p adjusted over them."""
    base = groups[baseline]
    if base is None:
        return groups
    most = base.measure.high - base.measure.low
    differences = {
        row: difference
        for row, group in enumerate(groups)
        if row != baseline
        and group is not None
        and (difference := paired_difference(group.by_seed, base.by_seed, most)) is not None
    }
    tested = {row: d.t_test for row, d in differences.items() if d.t_test is not None}
    p_values = dict(zip(tested, adjust_holm(list(tested.values())), strict=True))
    return [
        group and replace(group, difference=differences.get(row), p=p_values.get(row))
        for row, group in enumerate(groups)
    ]
