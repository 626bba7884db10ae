"""`capsweep eval ...`: what is computed from finished cells beyond their errors."""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from capsweep import terminal
from capsweep.cli import sweep_options
from capsweep.config import compose, places
from capsweep.config.overrides import render
from capsweep.config.places import Places
from capsweep.errors import UserError
from capsweep.evaluation import averaged_scores, figures
from capsweep.ledger.ledger import Ledger, load_predictions
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

if TYPE_CHECKING:  # it imports torch, which an ensemble does not need
    from capsweep.evaluation.attack import AttackOptions

Value = TypeVar("Value")
Contents: TypeAlias = list[dict[str, Any]]  # of a cell, as they are in files
# Takes a trained cell and its stored predictions; gives names and contents of files.
EvaluateNetwork: TypeAlias = Callable[..., Iterable[tuple[str, dict[str, Any]]]]
CLEAN, SINGLE, TOGETHER = "clean", "single crop", "13 crops"
CROPS_NOTE = (
    f"{SINGLE}: test error of the crop in the middle, which was checked to be what each cell "
    f"stored. {TOGETHER}: that crop and those 1, 2 and 3 pixels off it along both diagonals, each "
    "standardised by itself where the data set is, their scores averaged."
)


@dataclass(frozen=True)
class Group(Generic[Value]):
    """One row and column of a sweep's table. values: one for each finished cell.

    row: of the sweep's table. fields: of the row of an evaluation's table.
    """

    row: tuple[Any, ...]
    values: Sequence[Value]
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class SweepCells:
    """The cells of a sweep as chosen."""

    sweep: Sweep
    points: Sequence[Point]
    ledger: Ledger
    places: Places

    def evaluate(self, evaluate: Callable[[Point], Value]) -> list[Group[Value]]:
        """Every group; equal cells are evaluated once. Raises UserError where none is finished."""
        entries = self.ledger.entries_of(point.cell for point in self.points)
        values: dict[str, Value] = {}
        groups = []
        for row, by_column in table.group_points(self.sweep, self.points).items():
            for column, points in by_column.items():
                of_seeds = {p.seed: entries[p.cell.signature] for p in points}
                finished = [p for p in points if of_seeds[p.seed].status in table.COUNTED]
                for point in finished:
                    if point.cell.signature not in values:
                        values[point.cell.signature] = evaluate(point)
                fields = {
                    "coordinates": (*row, *column),
                    "wanted": len(of_seeds),
                    "missing": {
                        seed: entry.cause or entry.status
                        for seed, entry in of_seeds.items()
                        if entry.status not in table.COUNTED
                    },
                    "stale": sum(entry.status == "stale" for entry in of_seeds.values()),
                    "footnotes": table.dataset_notes(points),
                }
                groups.append(Group(row, [values[p.cell.signature] for p in finished], fields))
        if not values:
            raise UserError(f"no cell of {self.sweep.name} is finished; run the sweep first")
        return groups

    def evaluate_networks(self, device: str, evaluate: EvaluateNetwork) -> list[Group[Contents]]:
        """The same for what is computed from a network; each content becomes a file in the evals/
        of its cell.
        """
        from capsweep.evaluation.checkpoint import CellLoader, find_device

        loader = CellLoader(self.ledger, self.places.data, find_device(device))

        def evaluate_point(point: Point) -> Contents:
            name, contents = point.cell.signature, []
            for file, content in evaluate(*loader.load_tested(name, point.cell.config)):
                text = json.dumps(content, indent=2, allow_nan=False)
                path = self.ledger.write_evaluation(name, file, f"{text}\n".encode())
                print(f"{point.name}: {path}", flush=True)
                contents.append(content)
            return contents

        return self.evaluate(evaluate_point)

    def publish(self, name: str, answer: EvaluationTable) -> None:
        """Print a table and its notes, and write them to the reports of the sweep."""
        console = terminal.make_console()
        terminal.print_table(console, answer.as_terminal())
        for note in answer.notes:
            terminal.print_paragraph(console, note)
        path = self.places.storage / "reports" / self.sweep.name / name
        write_text(path, answer.as_markdown())
        terminal.print_line(console, f"report: {path}")


def _load_cells(parsed: argparse.Namespace) -> SweepCells:
    if parsed.metric is not None:
        raise UserError("METRIC: evaluations have metrics of their own; leave --metric out")
    sweep, points = sweep_options.load_points(parsed)
    resolved = places.resolve(points[0].cell.config["places"])
    places.prepare(resolved)
    points = more_seeds.load(resolved, sweep).add_points(points)
    return SweepCells(sweep, points, Ledger(resolved.ledger), resolved)


def run_ensemble(parsed: argparse.Namespace) -> int:
    """The seeds of each row as one network, from stored predictions."""
    cells, rows = _load_cells(parsed), []
    for group in cells.evaluate(lambda point: point.cell.signature):
        members = {name: load_predictions(cells.ledger, name) for name in group.values}
        wrong_M = averaged_scores.find_wrong_together(members) if len(members) > 1 else None
        row = EnsembleRow(
            single=tuple(averaged_scores.measure_error(*member) for member in members.items()),
            wrong=None if wrong_M is None else int(wrong_M.sum()),
            total=0 if wrong_M is None else len(wrong_M),
            published=table.format_published(cells.sweep, group.row),
            **group.fields,
        )
        rows.append(row)
    cells.publish("ensemble.md", make_ensemble_table(cells.sweep, rows))
    return 0


def run_multicrop(parsed: argparse.Namespace) -> int:
    """The 13-crop test of every cell; a file in each one's evals/, and a table."""
    cells, rows = _load_cells(parsed), []
    for group in cells.evaluate_networks(
        parsed.device,
        lambda *tested: [(averaged_scores.CROPS_FILE, averaged_scores.measure_crops(*tested))],
    ):
        contents = [content for (content,) in group.values]
        values = {
            SINGLE: [content["single_error"] for content in contents],
            TOGETHER: [content["multicrop_error"] for content in contents],
        }
        rows.append(_make_row(group, contents, values))
    answer = make_seeds_table(cells.sweep, "13-crop test", rows, (SINGLE, TOGETHER), (CROPS_NOTE,))
    cells.publish("multicrop.md", answer)
    return 0


def run_attack(parsed: argparse.Namespace) -> int:
    """Attack every cell; files in each one's evals/, and a table."""
    from capsweep.evaluation import attack

    options = attack.AttackOptions(
        methods=parsed.method,
        eps=parsed.eps,
        targeted=parsed.targeted,
        steps=parsed.steps,
        restarts=parsed.restarts,
        examples=parsed.examples,
    )
    cells, rows, columns = _load_cells(parsed), [], [f"eps {eps:g}" for eps in options.eps]
    groups = cells.evaluate_networks(
        parsed.device,
        lambda cell, stored: (
            (result.file, result.content) for result in attack.attack_cell(cell, options, stored)
        ),
    )
    rate = "success_rate" if options.targeted else "accuracy"
    for group in groups:
        for index, method in enumerate(options.methods):
            contents = [of_cell[index] for of_cell in group.values]
            values = {CLEAN: [content["clean_accuracy"] for content in contents]}
            for place, column in enumerate(columns):
                values[column] = [content["attacks"][place][rate] for content in contents]
            rows.append(_make_row(group, contents, values, method))
    contents = [content for group in groups for of_cell in group.values for content in of_cell]
    notes = _describe_attacks(options, contents)
    title = f"{options.aim_name} attacks"
    answer = make_seeds_table(cells.sweep, title, rows, (CLEAN, *columns), notes, ("method",))
    cells.publish(f"attack-{options.aim_name}.md", answer)
    return 0


def _make_row(
    group: Group[Contents], contents: Contents, values: Mapping[str, list[float]], *beside: str
) -> SeedsRow:
    examples = max((content["examples"] for content in contents), default=0)
    return SeedsRow(beside=beside, examples=examples, values=values, **group.fields)


def _describe_attacks(options: "AttackOptions", contents: Contents) -> list[str]:
    rate = "test accuracy that is left"
    if options.targeted:
        rate = (
            "rate of success of attacks at each of the other classes in turn, mean over examples "
            "and classes"
        )
    bounds = ", ".join(dict.fromkeys(content["bounds"] for content in contents))
    notes = [
        "clean: test accuracy of the unchanged images, which was checked to be what each cell "
        f"stored. eps: {rate} when no value is changed by more than eps; the attacker may leave an "
        "image alone. What an attack finds is the least that there is.",
        f"eps is in units of the network's input; bounds of changed values: {bounds}.",
    ]
    for method in options.methods:
        attack = options.list_attacks(method, seed=0)[0]
        budget = f"{attack.steps} steps of {attack.step / attack.eps:g} eps"
        notes.append(f"{method}: {budget}, {attack.restarts} restarts, seeded by the cell's seed.")
    attacks = [attack for content in contents for attack in content["attacks"]]
    if flat := sum(attack["flat"] for attack in attacks):
        notes.append(
            f"In {flat} of {sum(attack['tries'] for attack in attacks)} tries the loss had no "
            "gradient at the image: what a network withstands for that reason is not robustness."
        )
    return notes


def run_figure(parsed: argparse.Namespace) -> int:
    """Draw a figure of a cell into its evals/, the numbers beside it."""
    from capsweep.evaluation.checkpoint import CellLoader, find_device

    given = {"storage": parsed.storage, "data": parsed.data_dir, "ledger": parsed.ledger}
    texts = [render(f"places.{key}", value) for key, value in given.items() if value is not None]
    resolved = places.resolve(compose.cell(texts).config["places"])
    loader = CellLoader(Ledger(resolved.ledger), resolved.data, find_device(parsed.device))
    signature = loader.ledger.find_signature(parsed.signature)
    figures.draw_figure(parsed.figure, loader, signature, parsed)
    return 0
