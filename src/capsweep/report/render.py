"""A table as Markdown and for the terminal."""

from collections.abc import Callable
from typing import Any

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from capsweep.report.measure import Measure
from capsweep.report.table import Row, Table, Value
from capsweep.statistics.paired import smallest_p

MISSING = "–"
SIGNIFICANT = 0.05


def markdown(table: Table) -> str:
    """A Markdown table, best mean of a column in bold, the question above, notes below."""
    header = _header(table)
    lines = [_line(header), _line(["---"] * len(header))]
    best = _best(table)
    lines += [_line(_fields(table, row, best, lambda text: f"**{text}**")) for row in table.rows]
    notes = "".join(f"\n\n{note}" for note in footnotes(table))
    return f"# {table.sweep.name}\n\n{table.sweep.question}\n\n" + "\n".join(lines) + notes + "\n"


def terminal(table: Table) -> RichTable:
    """The same table for a terminal."""
    rich = RichTable(title=table.sweep.question, title_justify="left", box=box.SIMPLE_HEAD)
    for name in _header(table):
        rich.add_column(name.replace(".", ".\n"), overflow="fold")  # long keys, narrow columns
    best = _best(table)
    for row in table.rows:
        fields = _fields(table, row, best, lambda text: Text(text, style="bold"))
        rich.add_row(*(Text(field) if isinstance(field, str) else field for field in fields))
    return rich


def footnotes(table: Table) -> list[str]:
    """What the numbers are, why some are missing, and what they cannot show."""
    notes = [
        f"{table.sweep.metric} of the last epoch: mean ± standard deviation (seeds), 95 % t "
        "interval of the mean, none where all seeds are equal."
    ]
    notes += [f"{name}: {footnote}." for name, footnote in table.footnotes.items()]
    for row in table.rows:
        causes = [cause for value in row.values if value for cause in value.causes]
        notes += [f"failed: {_place(row)}: {cause}" for cause in causes]
    if any(value.unmeasured for row in table.rows for value in row.values if value):
        notes.append(f"{MISSING}: {table.sweep.metric} is not measured there.")
    notes += _on_differences(table)
    if table.stopping:
        notes.append(
            f"{table.stopping}. Intervals and p values are not adjusted for having looked."
        )
    for row in table.rows:
        if stale := sum(value.stale for value in row.values if value):
            renewed = "made by other code than today's; RERUN=stale renews them"
            notes.append(f"stale: {_place(row)}: {stale} cells {renewed}.")
    if any(row.published for row in table.rows):
        notes.append(f"published: {table.sweep.published.source}.")
    return notes


def _on_differences(table: Table) -> list[str]:
    found = [v.difference for row in table.rows for v in row.values if v and v.difference]
    if not found or table.baseline is None:
        return []
    notes = [
        f"to baseline: mean difference to {_place(table.rows[table.baseline])}"
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
    columns = [", ".join(map(_text, column)) for column in table.columns]
    beside = "to baseline"
    differences = [beside] if len(columns) == 1 else [f"{name} {beside}" for name in columns]
    return [*table.sweep.rows, *columns, *differences, "published"]


def _fields(
    table: Table, row: Row, best: list[float | None], strong: Callable[[str], Any]
) -> list[Any]:
    values = []
    for value, winner in zip(row.values, best, strict=True):
        text = _value(value, table.measure)
        values.append(strong(text) if _is_best(value, winner) else text)
    differences = [_difference(value, table.measure) for value in row.values]
    return [*_coordinates(row), *values, *differences, ", ".join(row.published) or MISSING]


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


def _coordinates(row: Row) -> list[str]:
    return [_text(value) for value in row.coordinates]


def _place(row: Row) -> str:
    return " · ".join(_coordinates(row))


def _line(fields: list[str]) -> str:
    return f"| {' | '.join(field.replace('|', '/') for field in fields)} |"


def _text(coordinate: Any) -> str:
    if coordinate is None:
        return MISSING
    return f"{coordinate:g}" if isinstance(coordinate, float) else str(coordinate)


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
