"""A table as Markdown and for the terminal."""

from collections.abc import Iterable, Sequence

from rich.table import Table as RichTable
from rich.text import Text

from capsweep.report import grid
from capsweep.report.formatted_table import FormattedField, FormattedTable, format_table
from capsweep.report.table import ResultTable


def render_markdown(table: ResultTable, written: FormattedTable | None = None) -> str:
    """A Markdown table, best mean of a column in bold, the question above, notes below.

    One table, however wide: who reads Markdown can scroll, and a row stays one line of a diff.
    """
    found = written or format_table(table)
    sweep, notes = table.sweep, found.notes
    return grid.grid_markdown(sweep.name, sweep.question, found.header, markdown_rows(found), notes)


def markdown_rows(found: FormattedTable) -> Iterable[Sequence[str]]:
    """The rows of a Markdown table."""
    return ([_mark_best(field) for field in line.fields] for line in found.lines)


def render_terminal(table: ResultTable, found: FormattedTable, width: int) -> list[RichTable]:
    """The same without question and notes for a terminal: one table, or where that is wider than
    `width` characters several below each other, values beside what is published, then differences.
    Their rows are named as in the notes, in one column, since keys are often wider than what stands
    below them; which keys, the first table says.
    """
    if sum(_field_width(found, column) for column in range(len(found.header))) <= width:
        rows = [[_style_field(field) for field in line.fields] for line in found.lines]
        return [grid.grid_terminal(None, found.header, rows)]
    places = [_describe_fields(line.fields) for line in found.lines]
    label = " · ".join(table.sweep.rows)
    tables = []
    for columns in _pack_columns(found, width - grid.column_width(label, places)):
        header = ["" if tables else label, *(found.header[column] for column in columns)]
        rows = [
            [place, *(_style_field(line.fields[column]) for column in columns)]
            for place, line in zip(places, found.lines, strict=True)
        ]
        tables.append(grid.grid_terminal(None, header, rows))
    return tables


def _pack_columns(found: FormattedTable, width: int) -> list[list[int]]:
    """Columns that stand beside each other; one that is too wide stands alone."""
    kinds = [field.kind for field in found.lines[0].fields]
    packed: list[list[int]] = []
    for group in (("value", "accuracy", "published"), ("difference",)):
        left = 0
        for column in (i for i, kind in enumerate(kinds) if kind in group):
            needed = _field_width(found, column)
            if left < needed:
                packed.append([])
                left = width
            packed[-1].append(column)
            left -= needed
    return packed


def _field_width(found: FormattedTable, column: int) -> int:
    return grid.column_width(
        found.header[column], (line.fields[column].text for line in found.lines)
    )


def _describe_fields(fields: Sequence[FormattedField]) -> str:
    return " · ".join(field.text for field in fields if field.kind == "coordinate")


def _mark_best(field: FormattedField) -> str:
    return f"**{field.text}**" if field.best else field.text


def _style_field(field: FormattedField) -> Text:
    return Text(field.text, style="bold" if field.best else "")
