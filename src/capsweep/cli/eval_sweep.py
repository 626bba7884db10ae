"""`capsweep eval ensemble | attack | multicrop`: what is computed from every cell of a sweep."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from capsweep import terminal
from capsweep.cli import sweep_options
from capsweep.config import places
from capsweep.config.places import Places
from capsweep.errors import DamageError, UserError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import Ledger, Predictions, load_predictions
from capsweep.report import table
from capsweep.report.evaluation_tables import (
    EnsembleRow,
    EvaluationTable,
    SeedsRow,
    make_ensemble_table,
    make_seeds_table,
)
from capsweep.storage.files import write_text
from capsweep.sweep import more_seeds
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

if TYPE_CHECKING:
    from capsweep.evaluation.attack import AttackOptions, AttackResult

Value = TypeVar("Value")
MIN_MEMBERS = 2  # of an ensemble
CLEAN, SINGLE, TOGETHER = "clean", "single crop", "13 crops"
CROPS_NOTE = (
    f"{SINGLE}: test error of the crop in the middle, which was checked to be what each cell "
    f"stored. {TOGETHER}: that crop and those 1, 2 and 3 pixels off it along both diagonals, each "
    "standardised by itself where the data set is, their scores averaged."
)


@dataclass(frozen=True)
class Group(Generic[Value]):
    """One row and column of a sweep's table. values: of its finished cells, by seed.

    row: of the sweep's table. fields: of the row of an evaluation's table.
    """

    row: tuple[Any, ...]
    values: Mapping[int, Value]
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class SweepCells:
    """The cells of a sweep as chosen."""

    sweep: Sweep
    points: Sequence[Point]
    ledger: Ledger
    here: Places

    def evaluate(self, evaluate: Callable[[Point], Value]) -> tuple[list[Group[Value]], int]:
        """Every group, and the exit status; equal cells are evaluated once.

        A cell with a damaged file is told of and counts as missing; the status is 1 then.
        """
        entries = self.ledger.entries_of(point.cell for point in self.points)
        values: dict[str, Value] = {}
        damaged: dict[str, str] = {}
        groups = []
        for row, by_column in table.group_points(self.sweep, self.points).items():
            for column, points in by_column.items():
                missing: dict[int, str] = {}
                for point in points:
                    name, entry = point.cell.signature, entries[point.cell.signature]
                    if entry.status in table.COUNTED and name not in values.keys() | damaged.keys():
                        try:
                            values[name] = evaluate(point)
                        except DamageError as error:
                            damaged[name] = str(error)
                            stored_files.print_damage(error)
                    if name not in values:
                        missing[point.seed] = damaged.get(name) or entry.cause or entry.status
                names = {p.seed: p.cell.signature for p in points if p.seed not in missing}
                fields = {
                    "coordinates": (*row, *column),
                    "wanted": len(names) + len(missing),
                    "missing": missing,
                    "stale": sum(entries[name].status == "stale" for name in names.values()),
                    "footnotes": table.dataset_notes(points),
                }
                by_seed = {seed: values[name] for seed, name in names.items()}
                groups.append(Group(row, by_seed, fields))
        return groups, 1 if damaged else 0

    def write_evaluation(self, point: Point, file: str, content: Mapping[str, Any]) -> None:
        """Write a file into the evals/ of a cell, and say where it is."""
        text = json.dumps(content, indent=2, allow_nan=False)
        path = self.ledger.write_evaluation(point.cell.signature, file, f"{text}\n".encode())
        print(f"{point.name}: {path}", flush=True)

    def publish(self, name: str, answer: EvaluationTable) -> None:
        """Print a table and its notes, and write them to the reports of the sweep."""
        show_table(answer)
        path = self.here.storage / "reports" / self.sweep.name / name
        try:
            write_text(path, answer.as_markdown())
            text = f"report: {path}"
        except OSError as error:  # the table is on the screen
            why = f"could not be written ({error.strerror})"
            text = f"report: {path} {why}; the same command writes it"
        terminal.print_line(terminal.make_console(), text)


def load_cells(parsed: argparse.Namespace, judged_by: str) -> SweepCells:
    """The cells that the options choose. judged_by: whose own metric the table has, in an error."""
    if parsed.json:
        raise UserError("--json is gone: numbers are in evals/*.json of cells and in the Markdown")
    if parsed.metric is not None:
        raise UserError(f"METRIC: {judged_by}; leave --metric out")
    sweep, points = sweep_options.load_points(parsed)
    here = places.resolve(points[0].cell.config["places"])
    places.prepare(here)
    points = more_seeds.load(here, sweep).add_points(points)
    return SweepCells(sweep, points, Ledger(here.ledger), here)


def show_table(answer: EvaluationTable) -> None:
    """Print a table and its notes."""
    console = terminal.make_console()
    terminal.print_table(console, answer.as_terminal())
    for note in answer.notes:
        terminal.print_paragraph(console, note)


def run_ensemble(parsed: argparse.Namespace) -> int:
    """The seeds of each row as one network, from stored predictions."""
    from capsweep.evaluation import averaged_scores

    cells = load_cells(parsed, "an ensemble is judged by its test error")

    def load_member(point: Point) -> tuple[str, Predictions]:
        name = point.cell.signature
        return name, load_predictions(cells.ledger, name)

    groups, status = cells.evaluate(load_member)
    rows = []
    for group in groups:
        members = dict(group.values.values())
        single = tuple(averaged_scores.measure_error(*member) for member in members.items())
        wrong_M = (
            averaged_scores.find_wrong_together(members) if len(members) >= MIN_MEMBERS else None
        )
        published = table.format_published(cells.sweep, group.row)
        rows.append(
            EnsembleRow(
                single=single,
                wrong=None if wrong_M is None else int(wrong_M.sum()),
                total=0 if wrong_M is None else len(wrong_M),
                published=published,
                **group.fields,
            )
        )
    answer = make_ensemble_table(cells.sweep, rows)
    if all(row.wrong is None for row in rows):
        show_table(answer)
        print(f"no row of {parsed.sweep} has {MIN_MEMBERS} finished cells", file=sys.stderr)
        return 1
    cells.publish("ensemble.md", answer)
    return status


def run_multicrop(parsed: argparse.Namespace) -> int:
    """The 13-crop test of every cell; a file in each one's evals/, and a table."""
    from capsweep.evaluation import averaged_scores
    from capsweep.evaluation.checkpoint import CellLoader, find_device

    device = find_device(parsed.device)
    cells = load_cells(parsed, "crops are judged by test error")
    loader = CellLoader(cells.ledger, cells.here.data, device)

    def measure_cell(point: Point) -> Mapping[str, Any]:
        cell, stored = loader.load_tested(point.cell.signature, point.cell.config)
        content = averaged_scores.measure_crops(cell, stored)
        cells.write_evaluation(point, averaged_scores.CROPS_FILE, content)
        return content

    groups, status = cells.evaluate(measure_cell)
    if not any(group.values for group in groups):
        return _report_unfinished(cells)
    rows = []
    for group in groups:
        contents = group.values.values()
        values = {
            SINGLE: [content["single_error"] for content in contents],
            TOGETHER: [content["multicrop_error"] for content in contents],
        }
        examples = max((content["examples"] for content in contents), default=0)
        rows.append(SeedsRow(beside=(), examples=examples, values=values, **group.fields))
    columns = (SINGLE, TOGETHER)
    answer = make_seeds_table(cells.sweep, "13-crop test", rows, columns, (CROPS_NOTE,))
    cells.publish("multicrop.md", answer)
    return status


def run_attack(parsed: argparse.Namespace) -> int:
    """Attack every cell; files in each one's evals/, and a table."""
    from capsweep.evaluation import attack
    from capsweep.evaluation.checkpoint import CellLoader, find_device

    options = attack.AttackOptions(
        methods=parsed.method,
        eps=parsed.eps,
        targeted=parsed.targeted,
        steps=parsed.steps,
        restarts=parsed.restarts,
        examples=parsed.examples,
    )
    device = find_device(parsed.device)
    cells = load_cells(parsed, "an attack is judged by test accuracy")
    loader = CellLoader(cells.ledger, cells.here.data, device)

    def attack_cell(point: Point) -> "list[AttackResult]":
        cell, stored = loader.load_tested(point.cell.signature, point.cell.config)
        results = []
        for result in attack.attack_cell(cell, options, stored):
            cells.write_evaluation(point, result.file, result.content)
            results.append(result)
        return results

    groups, status = cells.evaluate(attack_cell)
    if not any(group.values for group in groups):
        return _report_unfinished(cells)
    columns = (CLEAN, *(f"eps {eps:g}" for eps in options.eps))
    rows = []
    for group in groups:
        for index, method in enumerate(options.methods):
            results = [of_cell[index] for of_cell in group.values.values()]
            numbers = [(result.content["clean_accuracy"], *result.rates) for result in results]
            values = dict(zip(columns, zip(*numbers, strict=True), strict=False))
            examples = max((result.content["examples"] for result in results), default=0)
            rows.append(
                SeedsRow(beside=(method,), examples=examples, values=values, **group.fields)
            )
    every = [result for group in groups for some in group.values.values() for result in some]
    notes = _describe_attacks(options, every)
    title = f"{options.aim_name} attacks"
    answer = make_seeds_table(cells.sweep, title, rows, columns, notes, ("method",))
    cells.publish(f"attack-{options.aim_name}.md", answer)
    return status


def _describe_attacks(options: "AttackOptions", results: "Sequence[AttackResult]") -> list[str]:
    rate = "test accuracy that is left"
    if options.targeted:
        rate = (
            "rate of success of attacks at each of the other classes in turn, mean over examples "
            "and classes"
        )
    bounds = ", ".join(dict.fromkeys(result.content["bounds"] for result in results))
    notes = [
        "clean: test accuracy of the unchanged images, which was checked to be what each cell "
        f"stored. eps: {rate} when no value is changed by more than eps; the attacker may leave an "
        "image alone. What an attack finds is the least that there is.",
        f"eps is in units of the network's input; bounds of changed values: {bounds}.",
    ]
    for method in options.methods:
        attack = options.list_attacks(method, seed=0)[0]
        step = f"{attack.steps} steps of {attack.step / attack.eps:g} eps"
        budget = f"{step}, {attack.restarts} restarts"
        notes.append(
            f"{method}: {budget}, on the cross-entropy of logits; seeded by the cell's seed."
        )
    counts = [count for result in results for count in result.counts]
    if flat := sum(count.flat for count in counts):
        notes.append(
            f"In {flat} of {sum(count.tries for count in counts)} tries the loss had no gradient "
            "at the image: what a network withstands for that reason is not robustness."
        )
    if ties := max(result.content["ties"] for result in results):
        notes.append(f"Near ties fall otherwise than stored: of up to {ties} examples of a cell.")
    return notes


def _report_unfinished(cells: SweepCells) -> int:
    print(f"no cell of {cells.sweep.name} is finished; run the sweep first", file=sys.stderr)
    return 1


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "ensemble": run_ensemble,
    "attack": run_attack,
    "multicrop": run_multicrop,
}
