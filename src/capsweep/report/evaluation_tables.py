"""The tables of what is asked of trained cells, and of a search: rows of seeds, ensembles of
seeds, the best trials.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.table import Table as RichTable

from capsweep.report import grid
from capsweep.report.grid import MISSING, format_value
from capsweep.statistics.examples import wilson_interval
from capsweep.statistics.seeds import summarise_values
from capsweep.sweep.spec import Sweep

if TYPE_CHECKING:
    from capsweep.sweep.trials import SearchSummary

TRIALS, DIGITS = 10, 4  # of a search that are shown
ENSEMBLE_NOTE = (
    "single: mean test error of the members. ensemble: the members' scores of each test "
    "example added; 95 % interval over test examples (Wilson), which does not hold the spread "
    "over other trainings."
)


@dataclass(frozen=True)
class EnsembleRow:
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


@dataclass(frozen=True)
class SeedsRow:
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
class EvaluationTable:
    """The table of an evaluation in words. title: below the sweep's name; rows: its numbers, for
    programs.
    """

    sweep: Sweep
    title: str
    header: Sequence[str]
    fields: Sequence[Sequence[str]]
    notes: Sequence[str]
    rows: Sequence[EnsembleRow | SeedsRow]

    def as_markdown(self) -> str:
        """A Markdown table, the question above, notes below."""
        title, question = f"{self.sweep.name}: {self.title}", self.sweep.question
        return grid.grid_markdown(title, question, self.header, self.fields, self.notes)

    def as_terminal(self) -> RichTable:
        """The same table for a terminal, without its notes."""
        return grid.grid_terminal(self.sweep.question, self.header, self.fields)


def make_ensemble_table(sweep: Sweep, rows: Sequence[EnsembleRow]) -> EvaluationTable:
    """The seeds of a row, one by one and together."""
    header = [*sweep.rows, *sweep.columns, "members", "single", "ensemble", "published"]
    notes = [ENSEMBLE_NOTE, *_notes_on_rows(rows)]
    if any(row.published for row in rows):
        notes.append(f"published: {sweep.published.source}.")
    fields = [
        [
            *map(format_value, row.coordinates),
            f"{len(row.single)}/{row.wanted}",
            f"{100 * fmean(row.single):.2f} %" if row.single else MISSING,
            _describe_ensemble(row),
            ", ".join(row.published) or MISSING,
        ]
        for row in rows
    ]
    return EvaluationTable(sweep, "ensembles", header, fields, notes, rows)


def _describe_ensemble(row: EnsembleRow) -> str:
    """`0.83 % (3 of 360) [0.28, 2.43]`."""
    if row.wrong is None:
        return MISSING
    low, high = wilson_interval(row.wrong, row.total)
    rate, counts = 100 * row.wrong / row.total, f"({row.wrong} of {row.total})"
    return f"{rate:.2f} % {counts} [{100 * low:.2f}, {100 * high:.2f}]"


def make_seeds_table(
    sweep: Sweep,
    title: str,
    rows: Sequence[SeedsRow],
    columns: Sequence[str],
    notes: Iterable[str],
    beside: Sequence[str] = (),
) -> EvaluationTable:
    """A row for every place, its numbers over the seeds. notes: what the
    numbers are; beside: names of the rows' own.
    """
    header = [*sweep.rows, *sweep.columns, *beside, "seeds", "examples", *columns]
    all_notes = [*notes, "Mean ± standard deviation over seeds.", *_notes_on_rows(rows)]
    fields = [
        [
            *map(format_value, row.coordinates),
            *row.beside,
            f"{row.wanted - len(row.missing)}/{row.wanted}",
            str(row.examples) if row.examples else MISSING,
            *(_format_percent(row.values.get(column, ())) for column in columns),
        ]
        for row in rows
    ]
    return EvaluationTable(sweep, title, header, fields, all_notes, rows)


def _format_percent(values: Sequence[float]) -> str:
    """`87.31 ± 1.20 %`."""
    if not values:
        return MISSING
    summary = summarise_values(values)
    spread = "" if summary.std is None else f" ± {100 * summary.std:.2f}"
    return f"{100 * summary.mean:.2f}{spread} %"


def _notes_on_rows(rows: Sequence[EnsembleRow | SeedsRow]) -> list[str]:
    """What must be said of data sets, which cells are missing, and which are stale."""
    footnotes = {name: text for row in rows for name, text in row.footnotes.items()}
    notes = [f"{name}: {text}." for name, text in footnotes.items()]
    for place, row in {row.coordinates: row for row in rows}.items():
        if row.missing:
            why = "; ".join(f"seed {seed}: {cause}" for seed, cause in row.missing.items())
            notes.append(f"missing: {grid.describe_row(place)}: {why}.")
        if row.stale:
            notes.append(grid.note_stale(place, row.stale))
    return notes


def search_markdown(sweep: Sweep, summary: "SearchSummary") -> str:
    """The best trials, and what the reader must know of how they were chosen: the table is for
    choosing settings, never for a claim.
    """
    search = sweep.search
    assert search is not None
    keys = list(dict.fromkeys(key for trial in summary.complete for key in trial.settings))
    fields = [
        [
            format_value(value, DIGITS)
            for value in (trial.number, *map(trial.settings.get, keys), trial.value)
        ]
        for trial in summary.complete[:TRIALS]
    ]
    stopped = summary.stopped
    early = f"{stopped} ended early and are not shown" if stopped else "none early"
    notes = [
        f"Settings chosen on {search.metric} of validation examples (seed {sweep.seeds[0]}): "
        f"{summary.seen} of {search.trials} trials seen, {len(summary.complete)} complete, "
        f"{early}, {summary.failed} failed; sampler {search.sampler}, scheduler "
        f"{search.scheduler}. The best of many trials looks better than it is: this table supports "
        "no claim; run the chosen setting as an ablation, with other seeds."
    ]
    for trial in summary.complete[:1]:
        settings = (f"{key}={format_value(value, DIGITS)}" for key, value in trial.settings.items())
        notes.append(f"best: {' '.join(settings)}")
    header = ["trial", *keys, search.metric]
    return grid.grid_markdown(sweep.name, sweep.question, header, fields, notes)
