"""Tables of written fields, as Markdown and for the terminal: what all reports look alike in."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

MISSING = "–"


def grid_markdown(
    title: str,
    question: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    notes: Iterable[str],
) -> str:
    """Title, question, table, and a paragraph for each note."""
    told = "".join(f"\n\n{note}" for note in notes)
    return f"# {title}\n\n{question}\n\n" + pipe_table(header, rows) + told + "\n"


def pipe_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The table alone, without an end of line after it."""
    return "\n".join(
        [_pipe_line(header), _pipe_line(["---"] * len(header)), *map(_pipe_line, rows)]
    )


def grid_terminal(
    question: str | None, header: Sequence[str], rows: Iterable[Sequence[str | Text]]
) -> Table:
    """Question and table; a `Text` keeps its style, and no field is read as rich's markup."""
    table = Table(
        title=question and Text(question), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for name in header:
        table.add_column(Text(_fold_name(name)), overflow="fold")
    for fields in rows:
        table.add_row(*(Text(field) if isinstance(field, str) else field for field in fields))
    return table


def column_width(name: str, fields: Iterable[str]) -> int:
    """How wide a column of `terminal` is, the gap to the next one included."""
    return max(map(cell_len, (*_fold_name(name).splitlines(), *fields))) + 3


def format_value(value: Any, digits: int = 6) -> str:
    """A coordinate or setting, floats with so many digits."""
    if value is None:
        return MISSING
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def describe_row(coordinates: Iterable[Any]) -> str:
    """Which row, in a note."""
    return " · ".join(map(format_value, coordinates))


def note_stale(coordinates: Iterable[Any], count: int) -> str:
    """The note on cells of a row that other code made."""
    renewed = "made by other code than today's; RERUN=stale renews them"
    return f"stale: {describe_row(coordinates)}: {count} cells {renewed}."


def _fold_name(name: str) -> str:
    """Long keys in narrow columns."""
    return name.replace(".", ".\n").replace(" · ", " ·\n")


def _pipe_line(fields: Sequence[str]) -> str:
    return f"| {' | '.join(field.replace('|', '/') for field in fields)} |"
