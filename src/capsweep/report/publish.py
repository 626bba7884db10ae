"""`sweeps/NAME.md`: the answer beside its question, made by a command, with a verdict by hand."""

from pathlib import Path

from capsweep.errors import UserError
from capsweep.files import write_text
from capsweep.ledger.ledger import Ledger
from capsweep.report import between, grid, lines, render, trained
from capsweep.report.table import ResultTable
from capsweep.report.trained import TrainingSummary

NAME = "report"
VERDICT = "Not written yet. All that is outside the two markers is written by hand, and stays."


def path_of(table: ResultTable) -> Path:
    """Where the page is: beside the file of the sweep."""
    return table.sweep.path.with_suffix(".md")


def publish_answer(table: ResultTable, ledger: Ledger, command: str) -> Path:
    """Renew the part of the page between the markers, or make the page; where it is.

    Nothing of the machine enters it: of failures only their kind is told. Raises UserError for a
    page without a place for the table, or that cannot be written.
    """
    path = path_of(table)
    page = between.read(path)
    if page is None:
        page = _new_page(table)
    content = between.replace_section(
        page, NAME, answer_section(table, trained.collect_training(table, ledger), command), path
    )
    try:
        write_text(path, content)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); copy {path.stem}.yaml into a folder of "
            f"yours and report that: SWEEP=path/to/{path.stem}.yaml"
        ) from error
    return path


def answer_section(table: ResultTable, training: TrainingSummary, command: str) -> str:
    """Question, table, notes, and how to make it again."""
    written = lines.format_table(table, cause=lines.shorten_cause)
    rows = render.markdown_rows(written)
    parts = [table.sweep.question, grid.pipe_table(written.header, rows), *written.notes]
    return "\n".join(
        ["", "\n\n".join([*parts, f"`{command}` {trained.describe_training(training)}."]), "", ""]
    )


def _new_page(table: ResultTable) -> str:
    begin, end = between.section_markers(NAME)
    return f"# {table.sweep.name}\n\n{begin}\n{end}\n\n## Verdict\n\n{VERDICT}\n"
