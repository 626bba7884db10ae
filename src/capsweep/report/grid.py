"""Tables of written fields, as Markdown and for the terminal: what all reports look alike in."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table

from capsweep.runtime.terminal import count_of

MISSING = "–"
STALE = "stale: "  # begins the notes on cells that other code made


def grid_markdown(
    title: str,
    question: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    notes: Iterable[str],
) -> str:
    """Return title, what stands above the table, table, and a paragraph for each note."""
    return "\n\n".join([f"# {title}", question, pipe_table(header, rows), *notes]) + "\n"


def pipe_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return the table alone, without an end of line after it."""
    return "\n".join(
        [_pipe_line(header), _pipe_line(["---"] * len(header)), *map(_pipe_line, rows)]
    )


def grid_terminal(
    question: str | None, header: Sequence[str], rows: Iterable[Sequence[RenderableType]]
) -> Table:
    """Question and table, for our console: it makes what a terminal can show of strings, and reads
    no markup in them, before rich measures them.
    """
    table = Table(title=question, box=box.SIMPLE_HEAD, pad_edge=False)
    table.title_style, table.title_justify = "none", "left"
    for name in header:
        table.add_column(name.replace(".", ".\n"), overflow="fold")  # long keys
    for fields in rows:
        table.add_row(*fields)
    return table


def format_value(value: Any) -> str:
    """Return a coordinate or setting, floats with six digits."""
    if value is None:
        return MISSING
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def describe_row(coordinates: Iterable[Any]) -> str:
    """Return the name of a row, for a note."""
    return " · ".join(map(format_value, coordinates))


def note_stale(stale: Mapping[tuple[Any, ...], int], finished: int) -> list[str]:
    """Return a note for each row that has cells which other code made; one where all are such
    cells.

    stale: by the coordinates of a row; finished: the cells of all rows.
    """
    total = sum(stale.values())
    if total == finished:
        stale = {("all that are finished",): total}
    renewed = "made by other code than today's; RERUN=stale renews such cells"
    return [
        f"{STALE}{describe_row(row)}: {count_of(count, 'cell')} {renewed}."
        for row, count in stale.items()
        if count
    ]


def format_duration(seconds: float) -> str:
    """Return `19.5 s`, `4 min 10 s` or `2 h 03 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _pipe_line(fields: Sequence[str]) -> str:
    return f"| {' | '.join(field.replace('|', '/') for field in fields)} |"
