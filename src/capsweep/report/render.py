"""A table as Markdown and for the terminal."""

from collections.abc import Callable
from typing import Any

from rich.table import Table as RichTable
from rich.text import Text

from capsweep.report import grid
from capsweep.report.grid import MISSING, place, written
from capsweep.report.table import Row, Table, Value
from capsweep.statistics.measure import Measure
from capsweep.statistics.paired import smallest_p

SIGNIFICANT = 0.05


def markdown(table: Table) -> str:
    """A Markdown table, best mean of a column in bold, the question above, notes below."""
    rows = _rows(table, lambda text: f"**{text}**")
    sweep, notes = table.sweep, footnotes(table)
    return grid.markdown(sweep.name, sweep.question, _header(table), rows, notes)


def terminal(table: Table) -> RichTable:
    """The same table for a terminal."""
    rows = _rows(table, lambda text: Text(text, style="bold"))
    return grid.terminal(table.sweep.question, _header(table), rows)


def footnotes(table: Table) -> list[str]:
    """What the numbers are, why some are missing, and what they cannot show."""
    notes = [
        f"{table.sweep.metric} of the last epoch: mean ± standard deviation (seeds), 95 % t "
        "interval of the mean, none where all seeds are equal."
    ]
    notes += [f"{name}: {footnote}." for name, footnote in table.footnotes.items()]
    for row in table.rows:
        causes = [cause for value in row.values if value for cause in value.causes]
        notes += [f"failed: {place(row.coordinates)}: {cause}" for cause in causes]
    if any(value.unmeasured for row in table.rows for value in row.values if value):
        notes.append(f"{MISSING}: {table.sweep.metric} is not measured there.")
    notes += _on_differences(table)
    if table.stopping:
        notes.append(
            f"{table.stopping}. Intervals and p values are not adjusted for having looked."
        )
    for row in table.rows:
        if stale := sum(value.stale for value in row.values if value):
            notes.append(grid.on_stale(row.coordinates, stale))
    if any(row.published for row in table.rows):
        notes.append(f"published: {table.sweep.published.source}.")
    return notes


def _on_differences(table: Table) -> list[str]:
    found = [v.difference for row in table.rows for v in row.values if v and v.difference]
    if not found or table.baseline is None:
        return []
    notes = [
        f"to baseline: mean difference to {place(table.rows[table.baseline].coordinates)}"
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


def _header(table: Table) -> list[str]:
    columns = [", ".join(map(written, column)) for column in table.columns]
    beside = "to baseline"
    differences = [beside] if len(columns) == 1 else [f"{name} {beside}" for name in columns]
    return [*table.sweep.rows, *columns, *differences, "published"]


def _rows(table: Table, strong: Callable[[str], Any]) -> list[list[Any]]:
    best = _best(table)
    return [_fields(table, row, best, strong) for row in table.rows]


def _fields(
    table: Table, row: Row, best: list[float | None], strong: Callable[[str], Any]
) -> list[Any]:
    values = []
    for value, winner in zip(row.values, best, strict=True):
        text = _value(value, table.measure)
        values.append(strong(text) if _is_best(value, winner) else text)
    differences = [_difference(value, table.measure) for value in row.values]
    return [
        *map(written, row.coordinates),
        *values,
        *differences,
        ", ".join(row.published) or MISSING,
    ]


def _best(table: Table) -> list[float | None]:
    """The best mean of each column among complete fields; None where none is worse."""
    found: list[float | None] = []
    winner = max if table.measure.higher_is_better else min
    for column in range(len(table.columns)):
        fields = [row.values[column] for row in table.rows]
        means = [f.summary.mean for f in fields if f and f.is_complete and f.summary]
        found.append(winner(means) if means and min(means) < max(means) else None)
    return found


def _is_best(value: Value | None, best: float | None) -> bool:
    here = value.summary if value and value.is_complete else None
    return here is not None and here.mean == best


def _value(value: Value | None, measure: Measure) -> str:
    """`1.23 ± 0.10 % (3) [0.98, 1.48]`; a partial field says how many of its seeds are there."""
    if value is None or value.unmeasured:
        return MISSING
    summary = value.summary
    if not value.is_complete or summary is None:
        return f"{len(value.by_seed)}/{value.wanted} seeds" + ("; failed" if value.causes else "")
    spread = "" if summary.std is None else f" ± {measure.number(summary.std)}"
    interval = "" if summary.interval is None else f" {_interval(summary.interval, measure)}"
    return f"{measure.number(summary.mean)}{spread}{measure.unit} ({summary.n}){interval}"


def _difference(value: Value | None, measure: Measure) -> str:
    """`-0.93 [-2.10, 0.24] p 0.08 (3)`."""
    if value is None or value.difference is None:
        return MISSING
    difference = value.difference
    interval = "" if difference.interval is None else f" {_interval(difference.interval, measure)}"
    p = "" if value.p is None else f" p {value.p:.2g}"
    return f"{measure.number(difference.mean, '+')}{interval}{p} ({difference.n})"


def _interval(interval: tuple[float, float], measure: Measure) -> str:
    return f"[{measure.number(interval[0])}, {measure.number(interval[1])}]"
