"""The table of a sweep's results: means over seeds, and paired differences to the baseline.

The sweep file decides the rows and columns of the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from capsweep.ledger.ledger import Ledger
from capsweep.report.cells import TableCell, compare_data, list_differences, read_cells
from capsweep.report.grid import describe_column, describe_row
from capsweep.report.trained import PublishedNumber, find_published
from capsweep.statistics import seeds
from capsweep.statistics.metric_format import Measure, measure_of
from capsweep.statistics.seeds import PairedDifference, Summary
from capsweep.sweep.expand import Point, check_distinct_fields
from capsweep.sweep.spec import Sweep


@dataclass(frozen=True)
class CellGroup:
    """One field of a table: cells that differ only in their seed.

    Attributes:
        coordinates: The values of the row's keys, then the values of the column's keys.
        row: The index of the row in `ResultTable.rows`.
        column: The index of the column in `ResultTable.columns`.
        name: The coordinates of the row as text.
        cells: The cells by seed; empty if the row has no cells in the column.
        metric: The name of the metric that the table shows.
        difference: The difference to the field of the baseline in the same column, over common
            seeds. None for the baseline itself, or if there is no such field or no common seed.
        p: The p value of the paired t test of `difference`, adjusted over the rows by Holm's
            method. None if there is no test.
        is_best: Whether the field has the best mean of its column; false if all means are equal.
    """

    coordinates: tuple[Any, ...]
    row: int
    column: int
    name: str
    cells: Mapping[int, TableCell]
    metric: str
    difference: PairedDifference | None = None
    p: float | None = None
    is_best: bool = False

    @property
    def point(self) -> Point:
        """The place of the first cell in the sweep."""
        return next(iter(self.cells.values())).point

    @property
    def finished(self) -> dict[int, TableCell]:
        """The finished cells, by seed."""
        return {seed: cell for seed, cell in self.cells.items() if cell.is_finished}

    @cached_property
    def by_seed(self) -> dict[int, float]:
        """The value of the metric by seed, for finished cells that have the metric."""
        metrics = {seed: cell.result["metrics"] for seed, cell in self.finished.items()}
        return {
            s: measured[self.metric] for s, measured in metrics.items() if self.metric in measured
        }

    @property
    def measured(self) -> list[TableCell]:
        """The cells that have the metric."""
        return [self.cells[seed] for seed in self.by_seed]

    @property
    def unmeasured(self) -> bool:
        """Whether the field has finished cells, but none of them has the metric."""
        return bool(self.finished) and not self.by_seed

    @property
    def causes(self) -> list[str]:
        """The causes of the failed cells, each listed once."""
        causes = (cell.entry.cause for cell in self.cells.values())
        return [cause for cause in dict.fromkeys(causes) if cause is not None]

    @property
    def stale(self) -> int:
        """The number of cells that have the metric but were not made by the current code."""
        return sum(cell.entry.status == "stale" for cell in self.measured)

    @cached_property
    def summary(self) -> Summary | None:
        """The mean over the seeds that have the metric, with standard deviation and interval.

        The summary is None if no seed has the metric.
        """
        measure = measure_of(self.metric)
        values = list(self.by_seed.values())
        return seeds.summarise_values(values, measure.low, measure.high) if values else None

    @property
    def full_summary(self) -> Summary | None:
        """The summary if every seed has the metric, else None. Tables show no partial means."""
        return self.summary if len(self.by_seed) == len(self.cells) else None


@dataclass(frozen=True)
class TableRow:
    """One row of a table."""

    coordinates: tuple[Any, ...]  # values of the sweep's row keys
    values: tuple[CellGroup, ...]  # a field for each column
    published: tuple[PublishedNumber, ...]  # published numbers that fit the row


@dataclass(frozen=True)
class ResultTable:
    """The results of a sweep as a table."""

    sweep: Sweep  # gives the question, the metric, and the keys of rows and columns
    columns: tuple[tuple[Any, ...], ...]  # coordinates of each column
    rows: tuple[TableRow, ...]  # in the order of the sweep file
    baseline: int | None  # index of the baseline's row; None if the baseline is absent
    # By name: notes on data sets, and on differences in code, hardware and data.
    footnotes: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_matched(self) -> bool:
        """Whether an arm trains until it reaches the baseline's accuracy.

        The table then also shows accuracies.
        """
        return any(arm.matched for arm in self.sweep.arms)

    @property
    def groups(self) -> list[CellGroup]:
        """The fields that have cells, row by row."""
        return [group for row in self.rows for group in row.values if group.cells]

    @property
    def cells(self) -> list[TableCell]:
        """The distinct cells of the table. A cell that is in two rows is listed once."""
        every = (cell for group in self.groups for cell in group.cells.values())
        return list({cell.signature: cell for cell in every}.values())

    @property
    def points(self) -> list[Point]:
        """The places of the cells in the sweep; a cell in two rows has two places."""
        return [cell.point for group in self.groups for cell in group.cells.values()]

    def column_values(self, column: int) -> dict[str, Any]:
        """Return the values of a column by key."""
        return dict(zip(self.sweep.columns, self.columns[column], strict=True))

    def name_column(self, column: int) -> str:
        """Return the name of a column for the header."""
        return describe_column(self.column_values(column))

    @property
    def titles(self) -> list[str]:
        """The names of the columns, or one empty text if the table has only one column."""
        names = [self.name_column(column) for column in range(len(self.columns))]
        return names if len(names) > 1 else [""] * len(names)

    @property
    def has_published(self) -> bool:
        """Whether any row has published numbers."""
        return any(row.published for row in self.rows)

    @property
    def measure(self) -> Measure:
        """The unit, range and format of the table's metric."""
        return measure_of(self.sweep.metric)


def build_table(sweep: Sweep, points: Sequence[Point], ledger: Ledger) -> ResultTable:
    """Build the table of a sweep's results from the ledger.

    Args:
        sweep: The sweep, whose file decides rows, columns, metric and baseline.
        points: The places of the cells in the sweep.
        ledger: The ledger that has the cells.

    Raises:
        ConfigError: If one field has cells that differ in more than the seed.
        UserError: If cells of the same data set read different data.
    """
    check_distinct_fields(sweep, points)
    known = read_cells(points, ledger)
    fields: dict[tuple[Any, ...], dict[tuple[Any, ...], dict[int, TableCell]]] = {}
    for point in points:
        row, column = (tuple(map(point.coordinate, k)) for k in (sweep.rows, sweep.columns))
        field = fields.setdefault(row, {}).setdefault(column, {})
        field[point.seed] = replace(known[point.cell.signature], point=point)
    columns = tuple(dict.fromkeys(column for row in fields.values() for column in row))
    groups = [
        [
            CellGroup((*row, *column), i, j, describe_row(row), cells.get(column, {}), sweep.metric)
            for j, column in enumerate(columns)
        ]
        for i, (row, cells) in enumerate(fields.items())
    ]
    first = next((p for p in points if p.arm == sweep.baseline), None)
    baseline = first and list(fields).index(tuple(map(first.coordinate, sweep.rows)))
    compared = (_compare_column(each, baseline) for each in zip(*groups, strict=True))
    rows = tuple(
        TableRow(
            row, values, find_published(sweep, [group.point for group in values if group.cells])
        )
        for row, values in zip(fields, zip(*compared, strict=True), strict=True)
    )
    built = ResultTable(sweep, columns, rows, baseline)
    return replace(built, footnotes=_list_footnotes(built))


def _list_footnotes(table: ResultTable) -> dict[str, str]:
    """Return, by name, notes on data sets and on differences in code, hardware and data."""
    datasets = [point.cell.config["dataset"] for point in table.points]
    notes = {d["name"]: d["footnote"] for d in datasets if "footnote" in d}
    finished = [cell for cell in table.cells if cell.is_finished]
    hashes: dict[str, dict[str, None]] = {}  # digests of test images that were composed, not read
    for cell in finished:
        if sha256 := cell.result.get("test_sha256"):
            name = f"test set of {cell.point.cell.config['dataset']['name']}"
            hashes.setdefault(name, {})[sha256] = None
    notes |= {name: f"composed, sha256 {', '.join(each)}" for name, each in hashes.items()}
    fields = {
        describe_row(g.coordinates) if len(table.columns) > 1 else g.name: [*g.finished.values()]
        for g in table.groups
    }
    return notes | list_differences(fields) | compare_data(finished)


def _compare_column(groups: Sequence[CellGroup], baseline: int | None) -> list[CellGroup]:
    """Compare the fields of a column with the baseline's field, and mark the best mean.

    Args:
        groups: The fields of the column, row by row.
        baseline: The index of the baseline's row; None if the baseline is absent.

    Returns:
        The same fields with `difference`, `p` (adjusted over the rows by Holm's method) and
        `is_best`.
    """
    measure = measure_of(groups[0].metric)
    base = None if baseline is None else groups[baseline]
    most = measure.high - measure.low
    differences = {
        group.row: difference
        for group in groups
        if base is not None and group is not base
        if (difference := seeds.paired_difference(group.by_seed, base.by_seed, most)) is not None
    }
    adjusted = seeds.adjust_holm([difference.t_test for difference in differences.values()])
    p_values = dict(zip(differences, adjusted, strict=True))
    means = {group.row: group.full_summary.mean for group in groups if group.full_summary}
    choose = max if measure.higher_is_better else min
    best = choose(means.values()) if len({*means.values()}) > 1 else None
    return [
        replace(
            group,
            difference=differences.get(group.row),
            p=p_values.get(group.row),
            is_best=best is not None and means.get(group.row) == best,
        )
        for group in groups
    ]
