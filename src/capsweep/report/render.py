"""A table as Markdown and for the terminal."""

from typing import Any

from rich import box
from rich.table import Table as RichTable

from capsweep.report.table import Row, Table, Value

MISSING = "–"


def markdown(table: Table) -> str:
    """A Markdown table, the question above, causes of failures and sources below."""
    header = _header(table)
    lines = [_line(header), _line(["---"] * len(header))]
    lines += [_line(_fields(row)) for row in table.rows]
    notes = "".join(f"\n\n{note}" for note in footnotes(table))
    return f"# {table.sweep.name}\n\n{table.sweep.question}\n\n" + "\n".join(lines) + notes + "\n"


def terminal(table: Table) -> RichTable:
    """The same table for a terminal."""
    rich = RichTable(title=table.sweep.question, title_justify="left", box=box.SIMPLE_HEAD)
    for name in _header(table):
        rich.add_column(name.replace(".", ".\n"), overflow="fold")  # long keys, narrow columns
    for row in table.rows:
        rich.add_row(*_fields(row))
    return rich


def footnotes(table: Table) -> list[str]:
    """What the numbers are, why some are missing, and where the published ones come from."""
    notes = [f"{table.sweep.metric} of the last epoch: mean ± standard deviation (seeds)."]
    for row in table.rows:
        causes = [cause for value in row.values if value for cause in value.causes]
        notes += [f"failed: {' · '.join(_coordinates(row))}: {cause}" for cause in causes]
    if any(row.published for row in table.rows):
        notes.append(f"published: {table.sweep.published.source}.")
    return notes


def _header(table: Table) -> list[str]:
    columns = [", ".join(map(_text, column)) for column in table.columns]
    return [*table.sweep.rows, *columns, "published"]


def _fields(row: Row) -> list[str]:
    return [*_coordinates(row), *map(_value, row.values), ", ".join(row.published) or MISSING]


def _coordinates(row: Row) -> list[str]:
    return [_text(value) for value in row.coordinates]


def _line(fields: list[str]) -> str:
    return f"| {' | '.join(field.replace('|', '/') for field in fields)} |"


def _text(coordinate: Any) -> str:
    if coordinate is None:
        return MISSING
    return f"{coordinate:g}" if isinstance(coordinate, float) else str(coordinate)


def _value(value: Value | None) -> str:
    """`1.23 ± 0.10 % (3)`; a partial field says how many of its seeds are there, and no number."""
    if value is None:
        return MISSING
    if not value.is_complete or value.summary is None:
        there = value.summary.n if value.summary else 0
        return f"{there}/{value.wanted} seeds" + ("; failed" if value.causes else "")
    spread = "" if value.summary.std is None else f" ± {100 * value.summary.std:.2f}"
    return f"{100 * value.summary.mean:.2f}{spread} % ({value.summary.n})"
