"""The table of a sweep's ensembles: the seeds of a row, one by one and together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rich.table import Table as RichTable

from capsweep.report import grid
from capsweep.report.grid import MISSING, format_value
from capsweep.statistics.examples import wilson_interval
from capsweep.sweep.spec import Sweep


@dataclass(frozen=True)
class Row:
    """One place of the grid. single: the errors of its members; wrong: how many of `total` test
    examples the ensemble gets wrong, None where fewer than two members are there.

    missing: why a seed is no member, by seed; stale: members that other code made; footnotes: what
    must be said of its data set, by its name.
    """

    coordinates: tuple[Any, ...]
    wanted: int
    missing: Mapping[int, str]
    stale: int
    single: tuple[float, ...]
    wrong: int | None
    total: int
    published: tuple[str, ...]
    footnotes: Mapping[str, str] = field(default_factory=dict)


def ensemble_markdown(sweep: Sweep, rows: Sequence[Row]) -> str:
    """A Markdown table, the question above, notes below."""
    title, notes = f"{sweep.name}: ensembles", ensemble_notes(sweep, rows)
    return grid.grid_markdown(
        title, sweep.question, _ensemble_header(sweep), map(_ensemble_fields, rows), notes
    )


def ensemble_terminal(sweep: Sweep, rows: Sequence[Row]) -> RichTable:
    """The same table for a terminal."""
    return grid.grid_terminal(sweep.question, _ensemble_header(sweep), map(_ensemble_fields, rows))


def ensemble_notes(sweep: Sweep, rows: Sequence[Row]) -> list[str]:
    """What the numbers are, which members are missing, and what they cannot show."""
    notes = [
        "single: mean test error of the members. ensemble: the members' scores of each test "
        "example added; 95 % interval over test examples (Wilson), which does not hold the spread "
        "over other trainings."
    ]
    said = {name: text for row in rows for name, text in row.footnotes.items()}
    notes += [f"{name}: {text}." for name, text in said.items()]
    for row in rows:
        notes += grid.on_missing(row.coordinates, row.missing)
        if row.stale:
            notes.append(grid.on_stale(row.coordinates, row.stale))
    if any(row.published for row in rows):
        notes.append(f"published: {sweep.published.source}.")
    return notes


def _ensemble_header(sweep: Sweep) -> list[str]:
    return [*sweep.rows, *sweep.columns, "members", "single", "ensemble", "published"]


def _ensemble_fields(row: Row) -> list[str]:
    members = f"{len(row.single)}/{row.wanted}"
    single = f"{100 * fmean(row.single):.2f} %" if row.single else MISSING
    published = ", ".join(row.published) or MISSING
    return [
        *map(format_value, row.coordinates),
        members,
        single,
        _describe_ensemble(row),
        published,
    ]


def _describe_ensemble(row: Row) -> str:
    """`0.83 % (3 of 360) [0.28, 2.43]`."""
    if row.wrong is None:
        return MISSING
    low, high = wilson_interval(row.wrong, row.total)
    rate, counts = 100 * row.wrong / row.total, f"({row.wrong} of {row.total})"
    return f"{rate:.2f} % {counts} [{100 * low:.2f}, {100 * high:.2f}]"
