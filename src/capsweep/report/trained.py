"""How the cells of a table were trained: by whose code, when, for how long, and on what."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capsweep.ledger.ledger import Ledger
from capsweep.report.costs import hardware_in
from capsweep.report.facts import format_duration
from capsweep.report.table import ResultTable


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
    made = [ledger.provenance(signature) for signature in counted]
    rows = [ledger.rows(signature) for signature in counted]
    days = sorted(started[:10] for one in made if (started := one.get("started")))
    return TrainingSummary(
        cells=len(counted),
        epochs=tuple(sorted({len(epochs) for epochs in rows if epochs})),
        seconds=sum(epoch.get("seconds", 0.0) for epochs in rows for epoch in epochs),
        commits=_list_commits(made),
        hardware=tuple(sorted({name for one in made if (name := hardware_in(one))})),
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
