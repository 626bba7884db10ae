"""A table as written fields: what Markdown, the terminal, LaTeX and the page are all made from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from capsweep.ledger import causes
from capsweep.ledger.causes import CauseKind
from capsweep.report import grid
from capsweep.report.grid import MISSING, describe_row, format_value
from capsweep.report.table import CellGroup, ResultTable, TableRow
from capsweep.statistics import metric_format as measures
from capsweep.statistics.metric_format import Measure
from capsweep.statistics.seeds import smallest_p, summarise_values
from capsweep.sweep.matched import METRIC

SIGNIFICANT = 0.05
BESIDE = "to baseline"
PUBLISHED = "published"
ACCURACY = "validation accuracy"


@dataclass(frozen=True)
class FormattedField:
    """text: as people read it; best: whether it is the best mean of its column; column: of
    `Table.columns`, of values and of differences.
    """

    text: str
    kind: Literal["coordinate", "value", "accuracy", "difference", "published"]
    best: bool = False
    column: int | None = None

    @property
    def halves(self) -> tuple[str, str]:
        """The number, and what may stand smaller below it: interval and p, or of which data."""
        if self.kind == "coordinate" or (self.kind == "published" and "," in self.text):
            return self.text, ""
        number, bracket, beside = self.text.partition(" (" if self.kind == "published" else " [")
        return number, bracket.strip() + beside


@dataclass(frozen=True)
class FormattedRow:
    """The fields of one row, in the order of the header; row: of `Table.rows`."""

    fields: tuple[FormattedField, ...]
    row: int


@dataclass(frozen=True)
class FormattedTable:
    """notes: what the numbers are, why some are missing, and what they cannot show."""

    header: tuple[str, ...]
    lines: tuple[FormattedRow, ...]
    notes: tuple[str, ...]


def format_table(table: ResultTable, cause: Callable[[str], str] = str) -> FormattedTable:
    """The table in words: coordinates, values, differences to the baseline, published numbers.

    cause: how a cause of failure is told in the notes; whole.
    """
    best = _best_means(table)
    body = (FormattedRow(_row_fields(table, row, best), i) for i, row in enumerate(table.rows))
    return FormattedTable(
        tuple(_table_header(table)), tuple(body), tuple(table_notes(table, cause))
    )


def table_notes(table: ResultTable, cause: Callable[[str], str] = str) -> list[str]:
    """What the numbers are, why some are missing, and what they cannot show."""
    notes = [
        f"{table.sweep.metric} of the last epoch: mean ± standard deviation (seeds), 95 % t "
        "interval of the mean, none where all seeds are equal."
    ]
    notes += [f"{name}: {footnote}." for name, footnote in table.footnotes.items()]
    for row in table.rows:
        told = [cause(found) for value in row.values if value for found in value.causes]
        notes += [f"failed: {describe_row(row.coordinates)}: {why}" for why in dict.fromkeys(told)]
    if any(value.unmeasured for row in table.rows for value in row.values if value):
        notes.append(f"{MISSING}: {table.sweep.metric} is not measured there.")
    notes += _on_differences(table)
    if table.is_matched:
        told = ", ".join(arm.name for arm in table.sweep.arms if arm.matched)
        notes.append(
            f"{ACCURACY}: of the last epoch. {told}: trained until it is that of "
            f"{table.sweep.baseline}'s cell of the same data and seed, or above."
        )
    if table.stopping:
        notes.append(
            f"{table.stopping}. Intervals and p values are not adjusted for having looked."
        )
    notes += _on_stale(table)
    if any(row.published for row in table.rows):
        notes.append(f"{PUBLISHED}: {table.sweep.published.source}.")
    return notes


def _on_stale(table: ResultTable) -> list[str]:
    """A note for each row; where all that is there is stale, one for all."""
    stale = [sum(value.stale for value in row.values if value) for row in table.rows]
    there = sum(len(value.by_seed) for row in table.rows for value in row.values if value)
    if sum(stale) == there > 0:
        return [grid.on_stale(["all that are finished"], there)]
    found = zip(table.rows, stale, strict=True)
    return [grid.on_stale(row.coordinates, count) for row, count in found if count]


def shorten_cause(cause: str) -> str:
    """A cause of failure in a word or two: its kind, or the name of the error."""
    kind = causes.kind_of_cause(cause)
    name = cause.partition(":")[0]
    is_named = kind in (CauseKind.CODE, CauseKind.UNKNOWN) and name.isidentifier()
    return name if is_named else str(kind)


def _on_differences(table: ResultTable) -> list[str]:
    found = [v.difference for row in table.rows for v in row.values if v and v.difference]
    if not found or table.baseline is None:
        return []
    notes = [
        f"{BESIDE}: mean difference to {describe_row(table.rows[table.baseline].coordinates)}"
        f"{table.measure.points} over common seeds, 95 % t interval; p of the paired t test, Holm "
        "over the rows; neither where all differences are equal."
    ]
    fewest = min(difference.n for difference in found)
    if smallest_p(fewest) > SIGNIFICANT:
        notes.append(
            f"n = {fewest} cannot show a difference without assuming that differences are normal: "
            f"flipping signs gives p >= {smallest_p(fewest):g}."
        )
    return notes


def _table_header(table: ResultTable) -> list[str]:
    columns = [", ".join(map(format_value, column)) for column in table.columns]

    def of_each(what: str) -> list[str]:
        return [what] if len(columns) == 1 else [f"{name} {what}" for name in columns]

    accuracies = of_each(ACCURACY) if table.is_matched else []
    return [*table.sweep.rows, *columns, *accuracies, *of_each(BESIDE), PUBLISHED]


def _row_fields(
    table: ResultTable, row: TableRow, best: list[float | None]
) -> tuple[FormattedField, ...]:
    values, accuracies, differences = [], [], []
    for column, (value, winner) in enumerate(zip(row.values, best, strict=True)):
        text = _format_mean(value, table.measure)
        values.append(FormattedField(text, "value", _is_best(value, winner), column))
        if table.is_matched:
            accuracies.append(FormattedField(_format_accuracy(value), "accuracy"))
        text = _format_difference(value, table.measure)
        differences.append(FormattedField(text, "difference", column=column))
    coordinates = [FormattedField(format_value(value), "coordinate") for value in row.coordinates]
    published = FormattedField(", ".join(row.published) or MISSING, "published")
    return (*coordinates, *values, *accuracies, *differences, published)


def _best_means(table: ResultTable) -> list[float | None]:
    """The best mean of each column among complete fields; None where none is worse."""
    found: list[float | None] = []
    winner = max if table.measure.higher_is_better else min
    for column in range(len(table.columns)):
        fields = [row.values[column] for row in table.rows]
        means = [f.summary.mean for f in fields if f and f.is_complete and f.summary]
        found.append(winner(means) if means and min(means) < max(means) else None)
    return found


def _is_best(value: CellGroup | None, best: float | None) -> bool:
    here = value.summary if value and value.is_complete else None
    return here is not None and here.mean == best


def _format_mean(value: CellGroup | None, measure: Measure) -> str:
    """`1.23 ± 0.10 % (3) [0.98, 1.48]`; a partial field says how many of its seeds are there, and
    `failed: out of memory`.
    """
    if value is None or value.unmeasured:
        return MISSING
    summary = value.summary
    if not value.is_complete or summary is None:
        told = ", ".join(dict.fromkeys(map(shorten_cause, value.causes)))
        return f"{len(value.by_seed)}/{value.wanted} seeds" + (f"; failed: {told}" if told else "")
    spread = "" if summary.std is None else f" ± {measure.format_number(summary.std)}"
    interval = "" if summary.interval is None else f" {_format_interval(summary.interval, measure)}"
    return f"{measure.format_number(summary.mean)}{spread}{measure.unit} ({summary.n}){interval}"


def _format_accuracy(value: CellGroup | None) -> str:
    """`99.25 ± 0.02 % (3)`: of the finished cells, on their validation examples."""
    if value is None or not value.accuracies:
        return MISSING
    found, percent = summarise_values(list(value.accuracies)), measures.measure_of(METRIC)
    spread = "" if found.std is None else f" ± {percent.format_number(found.std)}"
    return f"{percent.format_number(found.mean)}{spread}{percent.unit} ({found.n})"


def _format_difference(value: CellGroup | None, measure: Measure) -> str:
    """`-0.93 [-2.10, 0.24] p 0.08 (3)`."""
    if value is None or value.difference is None:
        return MISSING
    difference = value.difference
    interval = (
        "" if difference.interval is None else f" {_format_interval(difference.interval, measure)}"
    )
    p = "" if value.p is None else f" p {value.p:.2g}"
    return f"{measure.format_number(difference.mean, '+')}{interval}{p} ({difference.n})"


def _format_interval(interval: tuple[float, float], measure: Measure) -> str:
    return f"[{measure.format_number(interval[0])}, {measure.format_number(interval[1])}]"
