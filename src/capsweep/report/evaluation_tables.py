"""What evaluations of trained cells say: tables of seeds and of ensembles, and two cells compared
on the same examples.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from rich.table import Table as RichTable

from capsweep.config.cell import get
from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger
from capsweep.ledger.stored_files import DATA
from capsweep.report import grid
from capsweep.report.grid import MISSING, format_value
from capsweep.report.published import PublishedNumber, format_published, note_published
from capsweep.statistics import examples
from capsweep.statistics.examples import (
    Disagreement,
    bootstrap_interval,
    count_disagreement,
    mcnemar_p,
    wilson_interval,
)
from capsweep.statistics.seeds import summarise_values
from capsweep.sweep.spec import Sweep

TEST_KEYS = ("dataset.reader", "dataset.test")  # what the test images of a cell are
ENSEMBLE_NOTE = (
    "single: mean test error of the members. ensemble: the members' scores of each test "
    "example added; 95 % interval over test examples (Wilson), which does not hold the spread "
    "over other trainings."
)


@dataclass(frozen=True, kw_only=True)
class PlaceRow:
    """One place of the grid. wanted: its seeds; missing: why a seed is not there, by seed; stale:
    cells that other code made; footnotes: what must be said of its data set, by its name.
    """

    coordinates: tuple[Any, ...]
    wanted: int
    missing: Mapping[int, str]
    stale: int
    footnotes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EnsembleRow(PlaceRow):
    """single: the errors of its members; wrong: how many of `total` test examples the ensemble gets
    wrong, None where fewer than two members are there.
    """

    single: tuple[float, ...]
    wrong: int | None
    total: int
    published: tuple[PublishedNumber, ...]


@dataclass(frozen=True, kw_only=True)
class SeedsRow(PlaceRow):
    """beside: what was asked, such as the method of an attack; examples: how many were asked about;
    values: fractions by column, of each seed that is there.
    """

    beside: tuple[str, ...]
    examples: int
    values: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class EvaluationTable:
    """The table of an evaluation in words. title: below the sweep's name; warnings: above it."""

    sweep: Sweep
    title: str
    header: Sequence[str]
    fields: Sequence[Sequence[str]]
    notes: Sequence[str]
    warnings: Sequence[str] = ()

    def as_markdown(self) -> str:
        """A Markdown table, question and warnings above, notes below."""
        title, lead = f"{self.sweep.name}: {self.title}", [self.sweep.question]
        lead += [f"**{warning}**" for warning in self.warnings]
        return grid.grid_markdown(title, "\n\n".join(lead), self.header, self.fields, self.notes)

    def as_terminal(self) -> RichTable:
        """The same table for a terminal, without its notes."""
        return grid.grid_terminal(self.sweep.question, self.header, self.fields)


def make_ensemble_table(sweep: Sweep, rows: Sequence[EnsembleRow]) -> EvaluationTable:
    """The seeds of a row, one by one and together."""
    header = [*sweep.rows, *sweep.columns, "members", "single", "ensemble", "published"]
    notes = [ENSEMBLE_NOTE, *_notes_on_rows(rows)]
    notes += note_published(sweep, [number for row in rows for number in row.published])
    fields = [
        [
            *map(format_value, row.coordinates),
            f"{len(row.single)}/{row.wanted}",
            f"{100 * fmean(row.single):.2f} %" if row.single else MISSING,
            MISSING if row.wrong is None else _format_error(row.wrong, row.total),
            format_published(sweep, row.published),
        ]
        for row in rows
    ]
    return EvaluationTable(sweep, "ensembles", header, fields, notes)


def _format_error(wrong: int, total: int) -> str:
    """`0.83 % (3 of 360) [0.28, 2.43]`, with Wilson's interval."""
    low, high = wilson_interval(wrong, total)
    return f"{100 * wrong / total:.2f} % ({wrong} of {total}) [{100 * low:.2f}, {100 * high:.2f}]"


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
            *(format_percent(row.values.get(column, ())) for column in columns),
        ]
        for row in rows
    ]
    return EvaluationTable(sweep, title, header, fields, all_notes)


def format_percent(values: Sequence[float]) -> str:
    """`87.31 ± 1.20 %` of fractions, those of seeds; the missing sign of none."""
    if not values:
        return MISSING
    summary = summarise_values(values)
    spread = "" if summary.std is None else f" ± {100 * summary.std:.2f}"
    return f"{100 * summary.mean:.2f}{spread} %"


def _notes_on_rows(rows: Sequence[PlaceRow]) -> list[str]:
    """What must be said of data sets, which cells are missing, and which are stale."""
    footnotes = {name: text for row in rows for name, text in row.footnotes.items()}
    notes = [f"{name}: {text}." for name, text in footnotes.items()]
    places = {row.coordinates: row for row in rows}
    for place, row in places.items():
        if row.missing:
            why = "; ".join(f"seed {seed}: {cause}" for seed, cause in row.missing.items())
            notes.append(f"missing: {grid.describe_row(place)}: {why}.")
    finished = sum(row.wanted - len(row.missing) for row in places.values())
    stale = {place: row.stale for place, row in places.items()}
    return [*notes, *grid.note_stale(stale, finished)]


@dataclass(frozen=True)
class Comparison:
    """counts of examples; p: McNemar's; difference of error rates, first minus second, and its
    interval by the paired bootstrap.
    """

    counts: Disagreement
    p: float
    difference: float
    interval: tuple[float, float]


def check_same_examples(ledger: Ledger, first: str, second: str) -> None:
    """Raise UserError when two cells were tested on different images; their labels may be equal:
    affine transformations of digits keep the digits' labels and their order.
    """
    ours, theirs = (_describe_test(ledger, signature) for signature in (first, second))
    for key in sorted(ours.keys() & theirs.keys()):
        if ours[key] != theirs[key]:
            raise UserError(
                f"{first} and {second} were tested on different examples ({key} differs); compare "
                "like with like"
            )


def _describe_test(ledger: Ledger, signature: str) -> dict[str, Any]:
    """What the test images of a cell are, as far as the ledger knows, by key."""
    science, result = ledger.read_science(signature), ledger.read_result(signature)
    parts = {} if science is None else {k: get(science, k) for k in TEST_KEYS}
    if result is None:
        return parts
    composed, read = result.get("test_sha256"), result.get(DATA, {}).get("test")
    if composed is None and read is not None:
        parts[f"{DATA}.test"] = read
    return parts | {"test_sha256": composed}


def _find_wrong(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """As in `examples`; raises UserError for scores that are no predictions of the labels."""
    try:
        return examples.find_wrong(scores, labels)
    except ValueError as error:
        raise UserError(f"predictions.npz: {error}; run the cell again") from error


def describe_error(scores: np.ndarray, labels: np.ndarray) -> str:
    """The error of one cell over its test examples."""
    error = _format_error(int(_find_wrong(scores, labels).sum()), len(labels))
    return f"test error {error}, with Wilson's 95 % interval"


def compare_predictions(
    first_scores: np.ndarray,
    first_labels: np.ndarray,
    second_scores: np.ndarray,
    second_labels: np.ndarray,
) -> Comparison:
    """McNemar's test and the paired bootstrap. Raises UserError for different test examples, or
    for scores that are no predictions of them.
    """
    if not np.array_equal(first_labels, second_labels):
        raise UserError("the two cells were tested on different examples; compare like with like")
    counts = count_disagreement(
        _find_wrong(first_scores, first_labels), _find_wrong(second_scores, second_labels)
    )
    difference = (counts.first_only - counts.second_only) / counts.total
    return Comparison(counts, mcnemar_p(counts), difference, bootstrap_interval(counts))


def describe_comparison(comparison: Comparison, first: str, second: str) -> str:
    """The comparison for a person."""
    counts, (low, high) = comparison.counts, comparison.interval
    return (
        f"{counts.total} test examples: wrong only in {first}: {counts.first_only}, only in "
        f"{second}: {counts.second_only}, in both: {counts.both}\n"
        f"difference of error {100 * comparison.difference:+.2f} points, 95 % interval "
        f"[{100 * low:.2f}, {100 * high:.2f}] (paired bootstrap)\n"
        f"p = {comparison.p:.3g} (McNemar, exact)"
    )
