"""`sweeps/NAME.md`: the answer beside its question, made by a command, with a verdict by hand."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsweep.errors import UserError
from capsweep.files import write_text
from capsweep.ledger.ledger import Ledger
from capsweep.report import between, grid, lines, render
from capsweep.report.table import Table

NAME = "report"
VERDICT = "Not written yet. All that is outside the two markers is written by hand, and stays."


@dataclass(frozen=True)
class Origin:
    """Whose code made the cells of a table, and on which days. commits: as it is told of them."""

    cells: int
    commits: tuple[str, ...]
    first: str
    last: str


def path_of(table: Table) -> Path:
    """Where the page is: beside the file of the sweep."""
    return table.sweep.path.with_suffix(".md")


def publish(table: Table, ledger: Ledger, command: str) -> Path:
    """Renew the part of the page between the markers, or make the page; where it is.

    Nothing of the machine enters it: of failures only their kind is told. Raises UserError for a
    page without a place for the table, or that cannot be written.
    """
    path = path_of(table)
    page = between.read(path)
    if page is None:
        page = _new(table)
    content = between.replaced(page, NAME, section(table, origin(table, ledger), command), path)
    try:
        write_text(path, content)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); copy {path.stem}.yaml into a folder of "
            f"yours and report that: SWEEP=path/to/{path.stem}.yaml"
        ) from error
    return path


def section(table: Table, made: Origin, command: str) -> str:
    """Question, table, notes, and how to make it again."""
    written = lines.lines(table, cause=lines.short)
    rows = render.marked(written)
    parts = [table.sweep.question, grid.pipes(written.header, rows), *written.notes]
    return "\n".join(["", "\n\n".join([*parts, f"`{command}` {_told(made)}."]), "", ""])


def origin(table: Table, ledger: Ledger) -> Origin:
    """Where the numbers of a table come from, as far as their cells wrote that down."""
    counted = dict.fromkeys(
        value.cells[seed]
        for row in table.rows
        for value in row.values
        if value is not None
        for seed in value.by_seed
    )
    made = [ledger.provenance(signature) for signature in counted]
    days = sorted(started[:10] for one in made if (started := one.get("started")))
    return Origin(len(counted), _commits(made), *((days[0], days[-1]) if days else ("", "")))


def _commits(made: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    found = []
    for one in made:
        code = one.get("code", {})
        version = f"capsweep {code.get('capsweep', 'of unknown version')}, no checkout"
        commit = f"commit {code['commit'][:12]}" if code.get("commit") else version
        found.append(f"{commit} with uncommitted changes" if code.get("dirty") else commit)
    return tuple(sorted(set(found)))


def _told(made: Origin) -> str:
    if not made.cells:
        return "printed this; no cell was finished"
    days = "" if not made.first else f", trained {made.first}"
    days += f" to {made.last}" if made.last != made.first else ""
    return f"printed this, from {made.cells} cells{days}, by {'; '.join(made.commits)}"


def _new(table: Table) -> str:
    begin, end = between.markers(NAME)
    return f"# {table.sweep.name}\n\n{begin}\n{end}\n\n## Verdict\n\n{VERDICT}\n"
