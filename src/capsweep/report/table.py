"""The table of a sweep: rows and columns as its file says, every number with n, mean and std."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from capsweep.ledger.ledger import Ledger
from capsweep.report.cells import TableCell, compare_data, list_differences, read_cells
from capsweep.report.grid import describe_row, format_value
from capsweep.report.trained import PublishedNumber, find_published
from capsweep.statistics import metric_format
from capsweep.statistics.metric_format import Measure
from capsweep.statistics.seeds import (
    PairedDifference,
    Summary,
    adjust_holm,
    paired_difference,
    summarise_values,
)
from capsweep.sweep.expand import Point, check_distinct_fields
from capsweep.sweep.spec import Sweep


@dataclass(frozen=True)
class CellGroup:
    """One field of a table.

    Attributes:
        coordinates: of its row and its column.
        row: its place in `ResultTable.rows`.
        column: its place in `ResultTable.columns`.
        name: the coordinates of its row, in words.
        cells: by seed; they differ in that alone.
        metric: what the table shows of them.
        difference: to the baseline over common seeds.
        p: of the t test of that, adjusted over the rows.
        is_best: whether its mean is the best of its column; no mean is where none is worse.
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
    def finished(self) -> dict[int, TableCell]:
        """The cells that are finished, by seed."""
        return {seed: cell for seed, cell in self.cells.items() if cell.is_finished}

    @cached_property
    def by_seed(self) -> dict[int, float]:
        """The metric of the finished cells that have it."""
        metrics = {seed: cell.result["metrics"] for seed, cell in self.finished.items()}
        return {
            s: measured[self.metric] for s, measured in metrics.items() if self.metric in measured
        }

    @property
    def unmeasured(self) -> bool:
        """Whether its cells are finished and have no such metric."""
        return bool(self.finished) and not self.by_seed

    @property
    def causes(self) -> list[str]:
        """Why cells failed, each cause once."""
        causes = (cell.entry.cause for cell in self.cells.values())
        return [cause for cause in dict.fromkeys(causes) if cause is not None]

    @property
    def stale(self) -> int:
        """How many of the measured cells other code than today's made."""
        return sum(self.cells[seed].entry.status == "stale" for seed in self.by_seed)

    @cached_property
    def summary(self) -> Summary | None:
        """n, mean, deviation and interval; None when nothing is there."""
        measure = metric_format.measure_of(self.metric)
        values = list(self.by_seed.values())
        return summarise_values(values, measure.low, measure.high) if values else None

    @property
    def full_summary(self) -> Summary | None:
        """The summary where every seed is there; a table shows no mean of some of them."""
        return self.summary if len(self.by_seed) == len(self.cells) else None


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
    def cells(self) -> list[TableCell]:
        """The cells behind it; one that stands in two rows once."""
        every = (cell for group in self.groups for cell in group.cells.values())
        return list({cell.signature: cell for cell in every}.values())

    @property
    def points(self) -> list[Point]:
        """The places of its cells; a cell that stands in two rows has two."""
        return [cell.point for group in self.groups for cell in group.cells.values()]

    def name_column(self, column: int) -> str:
        """Return a column as the header has it."""
        return ", ".join(map(format_value, self.columns[column]))

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
            CellGroup((*row, *column), i, j, describe_row(row), by_column[column], sweep.metric)
            if column in by_column
            else None
            for j, column in enumerate(columns)
        ]
        for i, (row, by_column) in enumerate(fields.items())
    ]
    first = next((p for p in points if p.arm == sweep.baseline), None)
    baseline = first and list(fields).index(tuple(map(first.coordinate, sweep.rows)))
    compared = (_compare_column(each, baseline) for each in zip(*groups, strict=True))
    rows = tuple(
        TableRow(
            row,
            tuple(values),
            find_published(sweep, [next(iter(g.cells.values())).point for g in values if g]),
        )
        for row, values in zip(fields, zip(*compared, strict=True), strict=True)
    )
    built = ResultTable(sweep, columns, rows, baseline, stopping)
    return replace(built, footnotes=_list_footnotes(built))


def _list_footnotes(table: ResultTable) -> dict[str, str]:
    """Return what must be said of data sets, by their name, and of what cells were made by."""
    datasets = [point.cell.config["dataset"] for point in table.points]
    notes = {d["name"]: d["footnote"] for d in datasets if "footnote" in d}
    finished = [cell for cell in table.cells if cell.is_finished]
    hashes: dict[str, dict[str, None]] = {}  # of test images that no file holds
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


def _compare_column(
    groups: Sequence[CellGroup | None], baseline: int | None
) -> list[CellGroup | None]:
    """Return the fields of a column with their differences to the baseline's, p adjusted over them,
    the best marked.
    """
    present = [group for group in groups if group is not None]
    measure = metric_format.measure_of(present[0].metric)
    base = None if baseline is None else groups[baseline]
    most = measure.high - measure.low
    differences = {
        group.row: difference
        for group in present
        if base is not None and group is not base
        if (difference := paired_difference(group.by_seed, base.by_seed, most)) is not None
    }
    tested = {row: d.t_test for row, d in differences.items() if d.t_test is not None}
    p_values = dict(zip(tested, adjust_holm(list(tested.values())), strict=True))
    means = {group.row: group.full_summary.mean for group in present if group.full_summary}
    choose = max if measure.higher_is_better else min
    best = choose(means.values()) if len({*means.values()}) > 1 else None
    return [
        group
        and replace(
            group,
            difference=differences.get(group.row),
            p=p_values.get(group.row),
            is_best=best is not None and means.get(group.row) == best,
        )
        for group in groups
    ]
