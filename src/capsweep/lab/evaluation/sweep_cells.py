"""The finished cells of a sweep, evaluated one after the other into a table."""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from capsweep.config import compose, places
from capsweep.config.overrides import render
from capsweep.config.places import Places
from capsweep.errors import UserError
from capsweep.ledger import records, stored_files, transfer
from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.ledger.listing import find_signature
from capsweep.report import grid
from capsweep.report.grid import format_value
from capsweep.report.publish import format_percent
from capsweep.report.table import CellGroup, ResultTable, build_table
from capsweep.report.trained import describe_trained, warn_of_cuts
from capsweep.runtime import terminal
from capsweep.storage.files import write_text
from capsweep.sweep import choices, expand, more_seeds
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

if TYPE_CHECKING:  # it imports torch, which an ensemble does without
    from capsweep.lab.evaluation.checkpoint import CellLoader

Value = TypeVar("Value")
Content: TypeAlias = dict[str, Any]  # of a file in the evals/ of a cell
# Takes a trained cell and its stored predictions; gives names and contents of files.
EvaluateNetwork: TypeAlias = Callable[..., Iterable[tuple[str, Content]]]


@dataclass(frozen=True)
class Place:
    """A field of a sweep's table.

    Attributes:
        coordinates: of its row and column.
        points: its cells, one of each seed.
        finished: those that count.
        missing: why a seed does not count, by seed.
        stale: how many of the finished ones other code made.
    """

    coordinates: tuple[Any, ...]
    points: Sequence[Point]
    finished: Sequence[Point]
    missing: Mapping[int, str]
    stale: int

    @property
    def label(self) -> str:
        """Return which row and column."""
        return grid.describe_row(self.coordinates)

    @property
    def counts(self) -> str:
        """Return `2/3`: how many of the seeds are there."""
        return f"{len(self.finished)}/{len(self.points)}"


Evaluated: TypeAlias = list[tuple[Place, list[Value]]]
Line: TypeAlias = tuple[Place, Sequence[str]]  # of a table, without the coordinates


@dataclass(frozen=True)
class SweepCells:
    """The cells of a sweep as chosen."""

    sweep: Sweep
    points: Sequence[Point]
    ledger: Ledger
    places: Places

    @cached_property
    def table(self) -> ResultTable:
        """Return the table of the cells, with what it says of their data and making."""
        return build_table(self.sweep, self.points, self.ledger)

    def evaluate_points(self, evaluate: Callable[[Point], Value]) -> Evaluated[Value]:
        """Return every field of the sweep's table with the values of its finished cells; equal
        cells are evaluated once. Raises UserError where none is finished, or where cells did not
        use the same data.
        """
        values: dict[str, Value] = {}
        evaluated = []
        for group in self.table.groups:
            place = self._describe_place(group)
            for point in place.finished:
                if point.cell.signature not in values:
                    values[point.cell.signature] = evaluate(point)
            evaluated.append((place, [values[p.cell.signature] for p in place.finished]))
        if not values:
            raise UserError(f"no cell of {self.sweep.name} is finished; run the sweep first")
        return evaluated

    def _describe_place(self, group: CellGroup) -> Place:
        lacking = {s: c.entry for s, c in group.cells.items() if not c.is_finished}
        return Place(
            group.coordinates,
            [cell.point for cell in group.cells.values()],
            [cell.point for cell in group.finished.values()],
            {seed: entry.cause or entry.status for seed, entry in lacking.items()},
            sum(cell.entry.status == "stale" for cell in group.cells.values()),
        )

    def evaluate_networks(
        self,
        device: str,
        evaluate: EvaluateNetwork,
        kept: tuple[str, type[records.Record]] | None = None,
    ) -> Evaluated[list[Content]]:
        """Return the same for what is computed from a network; each content becomes a file in the
        evals/ of its cell. kept: name and kind of the file that is read instead where a cell has no
        weights, as after the import of an archive.
        """
        from capsweep.lab.evaluation.checkpoint import CellLoader, find_device

        loader = CellLoader(self.ledger, self.places.data, find_device(device))

        def evaluate_point(point: Point) -> list[Content]:
            name, contents = point.cell.signature, []
            if kept and (stored := self._read_without_weights(name, *kept)):
                print(f"{point.name}: no weights; {kept[0]} is taken as it was stored", flush=True)
                return [stored]
            for file, content in evaluate(*loader.load_tested(name, point.cell.config)):
                print(
                    f"{point.name}: {write_content(self.ledger, name, file, content)}", flush=True
                )
                contents.append(content)
            return contents

        return self.evaluate_points(evaluate_point)

    def _read_without_weights(
        self, name: str, file: str, kind: type[records.Record]
    ) -> Content | None:
        """Return a stored evaluation of a cell that has no weights to make it anew."""
        if transfer.WEIGHTS in self.ledger.list_files(name):
            return None
        content = self.ledger.read(name, f"{EVALUATIONS}/{file}")
        cure = "import the cell with its weights, and evaluate it again"
        return None if content is None else stored_files.parse_json(content, file, cure, kind)

    def publish_table(
        self,
        name: str,
        title: str,
        header: Sequence[str],
        lines: Sequence[Line],
        notes: Iterable[str],
    ) -> None:
        """Print a table with the coordinates of each line before it, and write it as NAME.md to the
        reports of the sweep.

        Its notes say what was trained, by what and on what, what is missing, and what is stale.
        """
        sweep, warnings = self.sweep, warn_of_cuts(self.points)
        said = (f"{name}: {text}." for name, text in self.table.footnotes.items())
        places = {place.coordinates: place for place, _ in lines}.values()
        notes = [describe_trained(sweep, self.points), *said, *notes]
        notes += [SEEDS_NOTE] if {*SEEDS_HEADER} <= {*header} else []
        notes += _note_places(list(places))
        header = [*sweep.rows, *sweep.columns, *header]
        fields = [[*map(format_value, place.coordinates), *texts] for place, texts in lines]
        console = terminal.make_console()
        for warning in warnings:
            terminal.print_paragraph(console, warning)
        terminal.print_table(console, grid.grid_terminal(sweep.question, header, fields))
        for note in notes:
            terminal.print_paragraph(console, note)
        lead = "\n\n".join([sweep.question, *(f"**{warning}**" for warning in warnings)])
        path = self.places.storage / "reports" / sweep.report_name / f"{name}.md"
        write_text(path, grid.grid_markdown(f"{sweep.name}: {title}", lead, header, fields, notes))
        console.out(f"report: {path}")


def _note_places(places: Sequence[Place]) -> list[str]:
    """Say which cells are missing, and which are stale."""
    notes = []
    for place in places:
        if place.missing:
            why = "; ".join(f"seed {seed}: {cause}" for seed, cause in place.missing.items())
            notes.append(f"missing: {place.label}: {why}.")
    stale = {place.coordinates: place.stale for place in places}
    return [*notes, *grid.note_stale(stale, sum(len(place.finished) for place in places))]


SEEDS_NOTE = "Mean ± standard deviation over seeds."
SEEDS_HEADER = ("seeds", "examples")


def describe_seeds(
    place: Place, contents: Sequence[Content], columns: Iterable[Sequence[float]]
) -> list[str]:
    """Return the fields below SEEDS_HEADER and a column for the fractions of each."""
    examples = max((content["examples"] for content in contents), default=None)
    return [place.counts, format_value(examples), *map(format_percent, columns)]


def write_content(ledger: Ledger, signature: str, file: str, content: Content) -> str:
    """Write a file of the evals/ of a cell, and return where it is."""
    text = json.dumps(content, indent=2, allow_nan=False)
    return ledger.write_evaluation(signature, file, f"{text}\n".encode())


def load_cells(parsed: argparse.Namespace) -> SweepCells:
    """Return the cells of the sweep that a command's words choose.

    Raises UserError for a metric, which evaluations do not take.
    """
    sweep = choices.load_sweep(parsed.sweep, parsed.words, parsed.overrides)
    points = expand.set_accuracies(sweep, expand.expand_sweep(sweep))
    if parsed.metric is not None:
        raise UserError("METRIC: evaluations have metrics of their own; leave it out")
    resolved = places.resolve(points[0].cell.config["places"])
    places.prepare(resolved)
    points = more_seeds.load(resolved, sweep).add_points(points)
    return SweepCells(sweep, points, Ledger(resolved.ledger), resolved)


def open_cell(parsed: argparse.Namespace) -> "tuple[CellLoader, str]":
    """Return what loads cells, and the signature of the cell of a command."""
    from capsweep.lab.evaluation.checkpoint import CellLoader, find_device

    given = {"storage": parsed.storage, "data": parsed.data_dir, "ledger": parsed.ledger}
    texts = [render(f"places.{key}", value) for key, value in given.items() if value is not None]
    resolved = places.resolve(compose.cell(texts).config["places"])
    loader = CellLoader(Ledger(resolved.ledger), resolved.data, find_device(parsed.device))
    return loader, find_signature(loader.ledger, parsed.signature)
