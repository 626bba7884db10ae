"""The layout that all reports share: tables of text in Markdown and for the terminal."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table

from capsweep.runtime.terminal import count_of

MISSING = "–"
SEPARATOR = " · "  # between the coordinates of a row
STALE = "stale: "  # start of the notes on cells that were not made by the current code


def write_markdown(title: str, paragraphs: Iterable[str]) -> str:
    """Write a page in Markdown: the title and the paragraphs."""
    return "\n\n".join([f"# {title}", *paragraphs]) + "\n"


def pipe_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown, without a newline at its end."""
    return "\n".join(
        [_pipe_line(header), _pipe_line(["---"] * len(header)), *map(_pipe_line, rows)]
    )


def grid_terminal(
    question: str | None, header: Sequence[str], rows: Iterable[Sequence[RenderableType]]
) -> Table:
    """Return a table for our console, with the question as its title.

    Fields need no escaping, because our console does not read markup and replaces characters that
    a terminal cannot show.
    """
    table = Table(title=question, box=box.SIMPLE_HEAD, pad_edge=False)
    table.title_style, table.title_justify = "none", "left"
    for name in header:
        # Long keys are broken at their dots, and numbers are not.
        table.add_column(re.sub(r"\.(?=[a-z])", ".\n", name), overflow="fold")
    for fields in rows:
        table.add_row(*fields)
    return table


def format_value(value: Any) -> str:
    """Write a coordinate or setting as text; a float has at most six significant digits."""
    if value is None:
        return MISSING
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def describe_row(coordinates: Iterable[Any]) -> str:
    """Return the name of a row for notes: its coordinates, separated by `SEPARATOR`."""
    return SEPARATOR.join(map(format_value, coordinates))


def describe_column(values: Mapping[str, Any]) -> str:
    """Return the name of a column from its values by key, such as `linear, lr=0.01`.

    A text stands alone; any other value follows the last part of its key.
    """
    return ", ".join(
        value if isinstance(value, str) else f"{key.rpartition('.')[2]}={format_value(value)}"
        for key, value in values.items()
    )


def note_stale(stale: Mapping[tuple[Any, ...], int], finished: int) -> list[str]:
    """Return a note for each row with stale cells, or one note if all finished cells are stale.

    A cell is stale if the current code is not the code that made the cell.

    Args:
        stale: For the coordinates of each row, the number of stale cells in the row.
        finished: The number of finished cells in all rows.
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
    """Write a duration, such as `19.5 s`, `4 min 10 s` or `2 h 03 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _pipe_line(fields: Sequence[str]) -> str:
    return f"| {' | '.join(field.replace('|', '/') for field in fields)} |"
