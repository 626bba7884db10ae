"""The evaluation of a sweep's finished cells, one after another, and the table of the results."""

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
from capsweep.report.publish import format_percent
from capsweep.report.table import CellGroup, ResultTable, build_table
from capsweep.report.trained import describe_trained, warn_of_cuts
from capsweep.runtime import terminal
from capsweep.storage.files import write_text
from capsweep.sweep import choices, expand
from capsweep.sweep.expand import Point

Value = TypeVar("Value")
Content: TypeAlias = dict[str, Any]  # JSON object of a file in a cell's `evals/`
# A function that yields names and contents of files for a cell.
EvaluateNetwork: TypeAlias = Callable[[TrainedCell], Iterable[tuple[str, Content]]]
Evaluated: TypeAlias = list[tuple[CellGroup, list[Value]]]
Line: TypeAlias = tuple[CellGroup, Sequence[str]]  # cells of a row; texts after the coordinates


@dataclass(frozen=True)
class SweepCells:
    """The cells that the words of a command choose from a sweep.

    Attributes:
        table: Table of the cells and their errors.
        ledger: Ledger of the cells.
        places: Folders of results and data.
    """

    table: ResultTable
    ledger: Ledger
    places: Places

    def make_loader(self, device: str) -> CellLoader:
        """Return an object that loads cells of the ledger onto the named device.

        Raises:
            UserError: There is no such device.
        """
        return CellLoader(self.ledger, self.places.data, find_device(device))

    def evaluate_points(self, evaluate: Callable[[Point], Value]) -> Evaluated[Value]:
        """Evaluate each finished cell once, even if the cell is in several groups.

        Args:
            evaluate: Function that computes a value for the cell of a point of the sweep.

        Returns:
            A pair for each group of cells that differ only in the seed: the group, and the values
            of its finished cells.

        Raises:
            UserError: No cell is finished.
        """
        sweep, groups = self.table.sweep, self.table.groups
        cells = [cell for cell in self.table.cells if cell.is_finished]
        if not cells:
            raise UserError(f"no cell of {sweep.name} is finished; run the sweep first")
        values = {cell.signature: evaluate(cell.point) for cell in cells}
        return [(g, [values[cell.signature] for cell in g.finished.values()]) for g in groups]

    def evaluate_networks(
        self,
        loader: CellLoader,
        evaluate: EvaluateNetwork,
        kept: tuple[str, type[Record]] | None = None,
    ) -> Evaluated[list[Content]]:
        """Evaluate the network of each finished cell once, and store the results.

        Each content that `evaluate` yields is stored as a file in the folder `evals/` of the cell.
        The device and the hash of the code are added to the content.

        Args:
            loader: Object that loads the cells onto a device.
            evaluate: Function that yields names and contents of files for a loaded cell.
            kept: Name and record type of a file in `evals/`. If a cell has no weights (it may come
                from an imported archive), this stored file is used instead of an evaluation. None:
                all cells are evaluated.

        Returns:
            A pair for each group of cells that differ only in the seed: the group, and a list of
            contents for each finished cell.

        Raises:
            UserError: No cell is finished, or a cell cannot be loaded.
            DamageError: A file of a cell is missing or damaged.
        """

        def evaluate_point(point: Point) -> list[Content]:
            name, contents = point.cell.signature, []
            if kept and (content := self._read_without_weights(name, *kept)):
                print(f"{point.name}: no weights; the stored {kept[0]} is used", flush=True)
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
        """Return a stored evaluation; None if the cell has weights or does not have the file."""
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
        """Print a table, and write the table as NAME.md to the folder of the sweep's reports.

        Each row has the coordinates of the group, then the texts. Notes are added on the training
        (what was trained, by which code, on which hardware), on failed cells and on stale cells.

        Args:
            name: Name of the file, without extension.
            title: Title of the page.
            header: Names of the columns after the coordinates.
            lines: Group and texts of each row.
            notes: Paragraphs below the table.
        """
        sweep, points = self.table.sweep, self.table.points
        warnings = warn_of_cuts(points)
        footnotes = (f"{key}: {text}." for key, text in self.table.footnotes.items())
        notes = [describe_trained(sweep, points), *notes, *footnotes]
        for group in self.table.groups:
            field = grid.describe_row(group.coordinates)
            notes += [f"failed: {field}: {cause}." for cause in group.causes]
        stale = {group.coordinates: group.stale for group in self.table.groups}
        notes += grid.note_stale(stale, sum(len(group.finished) for group in self.table.groups))
        header = [*sweep.rows, *sweep.columns, *header]
        fields = [[*map(grid.format_value, group.coordinates), *texts] for group, texts in lines]
        console = terminal.make_console()
        terminal.print_paragraphs(console, *warnings)
        terminal.print_table(console, grid.grid_terminal(sweep.question, header, fields))
        terminal.print_paragraphs(console, *notes)
        lead = [sweep.question, *(f"**{warning}**" for warning in warnings)]
        paragraphs = [*lead, grid.pipe_table(header, fields), *notes]
        path = self.places.storage / "reports" / sweep.report_name / f"{name}.md"
        write_text(path, grid.write_markdown(f"{sweep.name}: {title}", paragraphs))
        console.out(f"report: {path}")


SEEDS_NOTE = "Mean ± standard deviation over seeds."
SEEDS_HEADER = ("seeds", "examples")


def describe_seeds(
    group: CellGroup, contents: Sequence[Content], columns: Iterable[Sequence[float]]
) -> list[str]:
    """Return the texts of a row: seeds, examples, and the mean ± deviation of each further column.

    The number of examples is the largest among the evaluations.

    Args:
        group: Cells of the row.
        contents: Evaluations of cells of the row, one for each seed that was evaluated.
        columns: For each further column, a fraction (such as an error) of each finished cell.
    """
    examples = max((content["examples"] for content in contents), default=None)
    seeds = f"{len(contents)}/{len(group.cells)}"
    return [seeds, grid.format_value(examples), *map(format_percent, columns)]


def load_cells(parsed: argparse.Namespace) -> SweepCells:
    """Return the cells that the words of a command choose from a sweep.

    Raises:
        UserError: METRIC was typed (evaluations have their own metrics), or the cells used
            different data.
    """
    sweep = choices.load_sweep(parsed.sweep, parsed.words, parsed.overrides)
    points = expand.set_accuracies(sweep, expand.expand_sweep(sweep))
    if parsed.metric is not None:
        raise UserError("METRIC: evaluations have their own metrics; leave METRIC out")
    resolved = places.resolve(points[0].cell.config["places"])
    places.prepare(resolved)
    ledger = Ledger(resolved.ledger)
    return SweepCells(build_table(sweep, points, ledger), ledger, resolved)


def open_cell(parsed: argparse.Namespace) -> tuple[CellLoader, str]:
    """Return a loader of cells, and the full signature of the cell that a command names.

    Raises:
        UserError: The ledger has no such cell or several such cells, or there is no such device.
    """
    typed = [expand_word(n, value) for n, value in parsed.words.items() if BY_NAME[n].is_place]
    resolved = places.resolve(compose.cell(typed).config["places"])
    loader = CellLoader(Ledger(resolved.ledger), resolved.data, find_device(parsed.device))
    return loader, find_signature(loader.ledger, parsed.signature)
