"""The finished cells of a sweep, evaluated one after the other into a table."""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from capsweep.config import code_identity, compose, places
from capsweep.config.overrides import expand_word
from capsweep.config.places import Places
from capsweep.config.words import BY_NAME
from capsweep.errors import UserError
from capsweep.lab.evaluation.checkpoint import CellLoader, TrainedCell, find_device
from capsweep.ledger import stored_files, transfer
from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.ledger.listing import find_signature
from capsweep.ledger.records import Record
from capsweep.report import grid
from capsweep.report.grid import describe_row, format_value
from capsweep.report.publish import format_percent
from capsweep.report.table import CellGroup, ResultTable, build_table
from capsweep.report.trained import describe_trained, warn_of_cuts
from capsweep.runtime import terminal
from capsweep.storage.files import write_text
from capsweep.sweep import choices, expand, more_seeds
from capsweep.sweep.expand import Point

Value = TypeVar("Value")
Content: TypeAlias = dict[str, Any]  # of a file in the evals/ of a cell
# Gives names and contents of files.
EvaluateNetwork: TypeAlias = Callable[[TrainedCell], Iterable[tuple[str, Content]]]
Evaluated: TypeAlias = list[tuple[CellGroup, list[Value]]]
Line: TypeAlias = tuple[CellGroup, Sequence[str]]  # of a table, without the coordinates


@dataclass(frozen=True)
class SweepCells:
    """The cells of a sweep as chosen, as the table of their errors has them."""

    table: ResultTable
    ledger: Ledger
    places: Places

    def make_loader(self, device: str) -> CellLoader:
        """Return what loads networks onto a device."""
        return CellLoader(self.ledger, self.places.data, find_device(device))

    def evaluate_points(self, evaluate: Callable[[Point], Value]) -> Evaluated[Value]:
        """Return every field with the values of its finished cells; equal cells are evaluated once.
        Raises UserError where none is finished.
        """
        sweep, groups = self.table.sweep, self.table.groups
        cells = [cell for cell in self.table.cells if cell.is_finished]
        if not cells:
            raise UserError(f"no cell of {sweep.name} is finished; run the sweep first")
        values = {cell.signature: evaluate(cell.point) for cell in cells}
        return [(g, [values[cell.signature] for cell in g.finished.values()]) for g in groups]

    def evaluate_networks(
        self, device: str, evaluate: EvaluateNetwork, kept: tuple[str, type[Record]] | None = None
    ) -> Evaluated[list[Content]]:
        """Return the same for what is computed from a network; each content becomes a file in the
        evals/ of its cell, with what it was computed by.

        kept: name and kind of the file that is read instead where a cell has no weights, as after
        the import of an archive.
        """
        loader = self.make_loader(device)

        def evaluate_point(point: Point) -> list[Content]:
            name, contents = point.cell.signature, []
            if kept and (content := self._read_without_weights(name, *kept)):
                print(f"{point.name}: no weights; {kept[0]} is taken as it was stored", flush=True)
                return [content]
            for file, content in evaluate(loader.load(name, point.cell.config)):
                content |= {"device": str(loader.device), "code": code_identity.hash_package()}
                text = f"{json.dumps(content, indent=2, allow_nan=False)}\n"
                where = self.ledger.write_evaluation(name, file, text.encode())
                print(f"{point.name}: {where}", flush=True)
                contents.append(content)
            return contents

        return self.evaluate_points(evaluate_point)

    def _read_without_weights(self, name: str, file: str, kind: type[Record]) -> Content | None:
        """Return a stored evaluation of a cell that has no weights to make it anew."""
        has_weights = transfer.WEIGHTS in self.ledger.list_files(name)
        stored = None if has_weights else self.ledger.read(name, f"{EVALUATIONS}/{file}")
        cure = "import the cell with its weights, and evaluate it again"
        return None if stored is None else stored_files.parse_json(stored, file, cure, kind)

    def publish_table(
        self,
        name: str,
        title: str,
        header: Sequence[str],
        lines: Iterable[Line],
        notes: Iterable[str],
    ) -> None:
        """Print a table with the coordinates of each line before it, and write it as NAME.md to the
        reports of the sweep.

        Its notes say what was trained, by what and on what, what failed, and what is stale.
        """
        sweep, points = self.table.sweep, self.table.points
        warnings = warn_of_cuts(points)
        footnotes = (f"{key}: {text}." for key, text in self.table.footnotes.items())
        notes = [describe_trained(sweep, points), *notes, *footnotes]
        for group in self.table.groups:
            field = describe_row(group.coordinates)
            notes += [f"failed: {field}: {cause}." for cause in group.causes]
        stale = {group.coordinates: group.stale for group in self.table.groups}
        notes += grid.note_stale(stale, sum(len(group.finished) for group in self.table.groups))
        header = [*sweep.rows, *sweep.columns, *header]
        fields = [[*map(format_value, group.coordinates), *texts] for group, texts in lines]
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


SEEDS_NOTE = "Mean ± standard deviation over seeds."
SEEDS_HEADER = ("seeds", "examples")


def count_seeds(group: CellGroup) -> str:
    """Return `2/3`: how many of the seeds of a field are there."""
    return f"{len(group.finished)}/{len(group.cells)}"


def describe_seeds(
    group: CellGroup, contents: Sequence[Content], columns: Iterable[Sequence[float]]
) -> list[str]:
    """Return the fields below SEEDS_HEADER and a column for the fractions of each."""
    examples = max((content["examples"] for content in contents), default=None)
    return [count_seeds(group), format_value(examples), *map(format_percent, columns)]


def load_cells(parsed: argparse.Namespace) -> SweepCells:
    """Return the cells of the sweep that a command's words choose.

    Raises UserError for a metric, which evaluations do not take, and where cells did not use the
    same data.
    """
    sweep = choices.load_sweep(parsed.sweep, parsed.words, parsed.overrides)
    points = expand.set_accuracies(sweep, expand.expand_sweep(sweep))
    if parsed.metric is not None:
        raise UserError("METRIC: evaluations have metrics of their own; leave it out")
    resolved = places.resolve(points[0].cell.config["places"])
    places.prepare(resolved)
    points = more_seeds.load(resolved, sweep).add_points(points)
    ledger = Ledger(resolved.ledger)
    return SweepCells(build_table(sweep, points, ledger), ledger, resolved)


def open_cell(parsed: argparse.Namespace) -> tuple[CellLoader, str]:
    """Return what loads cells, and the signature of the cell of a command."""
    typed = [expand_word(n, value) for n, value in parsed.words.items() if BY_NAME[n].is_place]
    resolved = places.resolve(compose.cell(typed).config["places"])
    loader = CellLoader(Ledger(resolved.ledger), resolved.data, find_device(parsed.device))
    return loader, find_signature(loader.ledger, parsed.signature)
