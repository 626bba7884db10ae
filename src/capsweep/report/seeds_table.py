"""The table of an evaluation of trained cells: a row for every seed of a place, its numbers over
them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table as RichTable

from capsweep.report import grid
from capsweep.report.grid import MISSING, format_value
from capsweep.statistics.seeds import summarise_values
from capsweep.sweep.spec import Sweep


@dataclass(frozen=True)
class Row:
    """One place of the grid, and what it was asked (`beside`, such as the method of an attack).

    examples: how many were asked about; values: fractions by column, of each seed that is there;
    missing: why a seed is not, by seed; stale: cells that other code made; footnotes: what must be
    said of its data set, by its name.
    """

    coordinates: tuple[Any, ...]
    beside: tuple[str, ...]
    wanted: int
    missing: Mapping[int, str]
    stale: int
    examples: int
    values: Mapping[str, Sequence[float]]
    footnotes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """title: below the sweep's name; beside, columns: of the rows; notes: what the numbers are."""

    title: str
    beside: tuple[str, ...]
    columns: tuple[str, ...]
    notes: tuple[str, ...]
    rows: tuple[Row, ...]


def seeds_markdown(sweep: Sweep, answer: Answer) -> str:
    """A Markdown table, the question above, notes below."""
    title, notes = f"{sweep.name}: {answer.title}", seeds_notes(answer)
    fields = (_seeds_fields(answer, row) for row in answer.rows)
    return grid.grid_markdown(title, sweep.question, _seeds_header(sweep, answer), fields, notes)


def seeds_terminal(sweep: Sweep, answer: Answer) -> RichTable:
    """The same table for a terminal."""
    fields = (_seeds_fields(answer, row) for row in answer.rows)
    return grid.grid_terminal(sweep.question, _seeds_header(sweep, answer), fields)


def seeds_notes(answer: Answer) -> list[str]:
    """What the numbers are, and which cells are missing or stale."""
    notes = [*answer.notes, "Mean ± standard deviation over seeds."]
    said = {name: text for row in answer.rows for name, text in row.footnotes.items()}
    notes += [f"{name}: {text}." for name, text in said.items()]
    places = {row.coordinates: row for row in answer.rows}  # one of what it was asked
    for place, row in places.items():
        notes += grid.on_missing(place, row.missing)
        if row.stale:
            notes.append(grid.on_stale(place, row.stale))
    return notes


def _seeds_header(sweep: Sweep, answer: Answer) -> list[str]:
    return [*sweep.rows, *sweep.columns, *answer.beside, "seeds", "examples", *answer.columns]


def _seeds_fields(answer: Answer, row: Row) -> list[str]:
    seeds = f"{row.wanted - len(row.missing)}/{row.wanted}"
    values = [_format_values(row.values.get(column, ())) for column in answer.columns]
    examples = str(row.examples) if row.examples else MISSING
    return [*map(format_value, row.coordinates), *row.beside, seeds, examples, *values]


def _format_values(values: Sequence[float]) -> str:
    """`87.31 ± 1.20 %`."""
    if not values:
        return MISSING
    summary = summarise_values(values)
    spread = "" if summary.std is None else f" ± {100 * summary.std:.2f}"
    return f"{100 * summary.mean:.2f}{spread} %"
