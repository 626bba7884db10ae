"""`sweeps/NAME.md`: the answer beside its question, made by a command, with a verdict by hand."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger
from capsweep.report import formatted_table, grid, markdown_section, render
from capsweep.report.cell_provenance import format_duration
from capsweep.report.cells import read_hardware
from capsweep.report.table import ResultTable
from capsweep.storage.files import write_text

NAME = "report"
VERDICT = "Not written yet. All that is outside the two markers is written by hand, and stays."


@dataclass(frozen=True)
class TrainingSummary:
    """All of it together. epochs: of a cell, each number once, rising; seconds: of all epochs of
    all cells; commits, hardware: as they are told; first, last: days, "" where nobody wrote them.
    """

    cells: int
    epochs: tuple[int, ...]
    seconds: float
    commits: tuple[str, ...]
    hardware: tuple[str, ...]
    first: str
    last: str


def collect_training(table: ResultTable, ledger: Ledger) -> TrainingSummary:
    """As far as the cells that count in the table wrote it down.

    Raises DamageError for a cell whose file of that is damaged.
    """
    counted = dict.fromkeys(
        value.cells[seed]
        for row in table.rows
        for value in row.values
        if value is not None
        for seed in value.by_seed
    )
    made = [ledger.read_provenance(signature) for signature in counted]
    rows = [ledger.read_rows(signature) for signature in counted]
    days = sorted(started[:10] for one in made if (started := one.get("started")))
    return TrainingSummary(
        cells=len(counted),
        epochs=tuple(sorted({len(epochs) for epochs in rows if epochs})),
        seconds=sum(epoch.get("seconds", 0.0) for epochs in rows for epoch in epochs),
        commits=_list_commits(made),
        hardware=tuple(sorted({name for one in made if (name := read_hardware(one))})),
        first=days[0] if days else "",
        last=days[-1] if days else "",
    )


def describe_training(training: TrainingSummary) -> str:
    """`printed this, from 9 cells of 2 epochs, trained 2026-11-01 in 4 min 10 s of cells on ...`"""
    if not training.cells:
        return "printed this; no cell was finished"
    cells = f"{training.cells} cell{'' if training.cells == 1 else 's'}"
    parts = [f"printed this, from {cells}{_describe_epochs(training.epochs)}"]
    trained = _describe_days(training) + _describe_cost(training)
    parts += [f"trained{trained}"] if trained else []
    return ", ".join([*parts, f"by {'; '.join(training.commits)}"])


def _describe_epochs(epochs: Sequence[int]) -> str:
    if not epochs:
        return ""
    several = f"{epochs[0]} to {epochs[-1]}" if len(epochs) > 1 else str(epochs[0])
    return f" of {several} epoch{'' if epochs[-1] == 1 else 's'}"


def _describe_days(training: TrainingSummary) -> str:
    last = f" to {training.last}" if training.last != training.first else ""
    return f" {training.first}{last}" if training.first else ""


def _describe_cost(training: TrainingSummary) -> str:
    """The time is that of the cells one after another; some may have run side by side."""
    on = f" on {', '.join(training.hardware)}" if training.hardware else ""
    return f" in {format_duration(training.seconds)} of cells{on}" if training.seconds else ""


def _list_commits(made: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    found = []
    for one in made:
        code = one.get("code", {})
        version = f"capsweep {code.get('capsweep', 'of unknown version')}, no checkout"
        commit = f"commit {code['commit'][:12]}" if code.get("commit") else version
        found.append(f"{commit} with uncommitted changes" if code.get("dirty") else commit)
    return tuple(sorted(set(found)))


def path_of(table: ResultTable) -> Path:
    """Where the page is: beside the file of the sweep."""
    return table.sweep.path.with_suffix(".md")


def publish_answer(table: ResultTable, ledger: Ledger, command: str) -> Path:
    """Renew the part of the page between the markers, or make the page; where it is.

    Nothing of the machine enters it: of failures only their kind is told. Raises UserError for a
    page without a place for the table, or that cannot be written.
    """
    path = path_of(table)
    page = markdown_section.read(path)
    if page is None:
        page = _new_page(table)
    content = markdown_section.replace_section(
        page, NAME, answer_section(table, collect_training(table, ledger), command), path
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
    written = formatted_table.format_table(table, cause=formatted_table.shorten_cause)
    rows = render.markdown_rows(written)
    parts = [table.sweep.question, grid.pipe_table(written.header, rows), *written.notes]
    return "\n".join(
        ["", "\n\n".join([*parts, f"`{command}` {describe_training(training)}."]), "", ""]
    )


def _new_page(table: ResultTable) -> str:
    begin, end = markdown_section.section_markers(NAME)
    return f"# {table.sweep.name}\n\n{begin}\n{end}\n\n## Verdict\n\n{VERDICT}\n"
