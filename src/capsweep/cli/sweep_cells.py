"""The cells of a sweep that are finished, evaluated one after the other into a table."""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from capsweep.cli import sweep_options
from capsweep.config import places
from capsweep.config.places import Places
from capsweep.errors import UserError
from capsweep.ledger import records, stored_files, transfer
from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.report import circumstances, table
from capsweep.report.evaluation_tables import EvaluationTable
from capsweep.report.trained import describe_trained, warn_of_cuts
from capsweep.runtime import terminal
from capsweep.storage.files import write_atomically
from capsweep.sweep import more_seeds
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

if TYPE_CHECKING:
    from rich.console import Console

Value = TypeVar("Value")
# Cells of a field of a sweep's table, values of those finished, and fields of an evaluation's row.
Group: TypeAlias = tuple[list[Point], list[Value], dict[str, Any]]
Content: TypeAlias = dict[str, Any]  # of a file in the evals/ of a cell
# Takes a trained cell and its stored predictions; gives names and contents of files.
EvaluateNetwork: TypeAlias = Callable[..., Iterable[tuple[str, Content]]]


@dataclass(frozen=True)
class SweepCells:
    """The cells of a sweep as chosen."""

    sweep: Sweep
    points: Sequence[Point]
    ledger: Ledger
    places: Places

    def evaluate_points(self, evaluate: Callable[[Point], Value]) -> list[Group[Value]]:
        """Return every row and column of the sweep's table; equal cells are evaluated once. Raises
        UserError where none is finished, or where cells did not use the same data.
        """
        entries = self.ledger.entries_of(point.cell for point in self.points)
        data = circumstances.compare_data(self.points, entries)
        values: dict[str, Value] = {}
        groups = []
        for row, by_column in table.group_points(self.sweep, self.points).items():
            for column, points in by_column.items():
                of_seeds = {p.seed: entries[p.cell.signature] for p in points}
                lacking = {s: e for s, e in of_seeds.items() if e.status not in table.COUNTED}
                finished = {p.seed: p for p in points if p.seed not in lacking}.values()
                for point in finished:
                    if point.cell.signature not in values:
                        values[point.cell.signature] = evaluate(point)
                fields = {
                    "coordinates": (*row, *column),
                    "wanted": len(of_seeds),
                    "missing": {s: entry.cause or entry.status for s, entry in lacking.items()},
                    "stale": sum(entry.status == "stale" for entry in of_seeds.values()),
                    "footnotes": table.dataset_notes(points) | data,
                }
                groups.append((points, [values[p.cell.signature] for p in finished], fields))
        if not values:
            raise UserError(f"no cell of {self.sweep.name} is finished; run the sweep first")
        return groups

    def evaluate_networks(
        self, device: str, evaluate: EvaluateNetwork, kept_file: str | None = None
    ) -> list[Group[list[Content]]]:
        """The same for what is computed from a network; each content becomes a file in the evals/
        of its cell. kept_file: the one that is read instead where a cell has no weights, as after
        the import of an archive.
        """
        from capsweep.lab.evaluation.checkpoint import CellLoader, find_device

        loader = CellLoader(self.ledger, self.places.data, find_device(device))

        def evaluate_point(point: Point) -> list[Content]:
            name, contents = point.cell.signature, []
            if kept_file and (kept := self._read_without_weights(name, kept_file)):
                print(
                    f"{point.name}: no weights; {kept_file} is taken as it was stored", flush=True
                )
                return [kept]
            for file, content in evaluate(*loader.load_tested(name, point.cell.config)):
                text = json.dumps(content, indent=2, allow_nan=False)
                path = self.ledger.write_evaluation(name, file, f"{text}\n".encode())
                print(f"{point.name}: {path}", flush=True)
                contents.append(content)
            return contents

        return self.evaluate_points(evaluate_point)

    def _read_without_weights(self, name: str, file: str) -> Content | None:
        """Return a stored evaluation of a cell that has no weights to make it anew."""
        if transfer.WEIGHTS in self.ledger.list_files(name):
            return None
        content = self.ledger.read(name, f"{EVALUATIONS}/{file}")
        cure = "import the cell with its weights, and evaluate it again"
        if content is None:
            return None
        return stored_files.parse_json(content, file, cure, records.Couplings)

    def complete_table(self, answer: EvaluationTable) -> EvaluationTable:
        """Return the table with what was trained, and with warnings of cuts."""
        grid = table.group_points(self.sweep, self.points)
        entries = self.ledger.entries_of(point.cell for point in self.points)
        differences = circumstances.list_differences(grid, entries, self.ledger)
        made_by = (f"{name}: {text}." for name, text in differences.items())
        notes = [describe_trained(self.sweep, self.points), *made_by, *answer.notes]
        return replace(answer, notes=notes, warnings=warn_of_cuts(self.points))

    def publish_table(self, name: str, answer: EvaluationTable) -> None:
        """Print a table, its warnings and notes, and write them to the reports of the sweep."""
        answer, console = self.complete_table(answer), terminal.make_console()
        print_evaluation(answer, console)
        self.write_report(name, answer.as_markdown().encode(), console)

    def write_report(self, name: str, content: bytes, console: "Console") -> None:
        """Write a file of the reports of the sweep, and print where it is."""
        path = self.places.storage / "reports" / self.sweep.report_name / name
        write_atomically(path, lambda file: file.write(content))
        terminal.print_line(console, f"report: {path}")


def print_evaluation(answer: EvaluationTable, console: "Console") -> None:
    """A table, warnings above and notes below."""
    for warning in answer.warnings:
        terminal.print_paragraph(console, warning)
    terminal.print_table(console, answer.as_terminal())
    for note in answer.notes:
        terminal.print_paragraph(console, note)


def load_cells(parsed: argparse.Namespace) -> SweepCells:
    """As its options choose them. Raises UserError for a metric, which evaluations do not take."""
    if parsed.metric is not None:
        raise UserError("METRIC: evaluations have metrics of their own; leave --metric out")
    sweep, points = sweep_options.load_points(parsed)
    resolved = places.resolve(points[0].cell.config["places"])
    places.prepare(resolved)
    points = more_seeds.load(resolved, sweep).add_points(points)
    return SweepCells(sweep, points, Ledger(resolved.ledger), resolved)
