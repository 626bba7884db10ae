"""`sweeps/NAME.md`: the answer beside its question, made by a command, with a verdict by hand."""

from pathlib import Path

from capsweep.errors import UserError
from capsweep.files import write_text
from capsweep.ledger.ledger import Ledger
from capsweep.report import between, grid, lines, render, trained
from capsweep.report.table import Table
from capsweep.report.trained import Training

NAME = "report"
VERDICT = "Not written yet. All that is outside the two markers is written by hand, and stays."


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
    content = between.replaced(page, NAME, section(table, trained.of(table, ledger), command), path)
    try:
        write_text(path, content)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); copy {path.stem}.yaml into a folder of "
            f"yours and report that: SWEEP=path/to/{path.stem}.yaml"
        ) from error
    return path


def section(table: Table, training: Training, command: str) -> str:
    """Question, table, notes, and how to make it again."""
    written = lines.lines(table, cause=lines.short)
    rows = render.marked(written)
    parts = [table.sweep.question, grid.pipes(written.header, rows), *written.notes]
    return "\n".join(["", "\n\n".join([*parts, f"`{command}` {trained.told(training)}."]), "", ""])


def _new(table: Table) -> str:
    begin, end = between.markers(NAME)
    return f"# {table.sweep.name}\n\n{begin}\n{end}\n\n## Verdict\n\n{VERDICT}\n"
