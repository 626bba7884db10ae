"""A table as Markdown and for the terminal."""

from rich.table import Table as RichTable
from rich.text import Text

from capsweep.report import grid
from capsweep.report.lines import Field, Written, lines
from capsweep.report.table import Table


def markdown(table: Table) -> str:
    """A Markdown table, best mean of a column in bold, the question above, notes below."""
    sweep, found = table.sweep, lines(table)
    rows = ([_marked(field) for field in line.fields] for line in found.lines)
    return grid.markdown(sweep.name, sweep.question, found.header, rows, found.notes)


def terminal(table: Table, found: Written) -> RichTable:
    """The same table for a terminal."""
    rows = ([_styled(field) for field in line.fields] for line in found.lines)
    return grid.terminal(table.sweep.question, found.header, rows)


def _marked(field: Field) -> str:
    return f"**{field.text}**" if field.best else field.text


def _styled(field: Field) -> Text:
    return Text(field.text, style="bold" if field.best else "")
