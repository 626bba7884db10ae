"""`capsweep eval ...`: what is computed from finished cells beyond their errors."""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from capsweep import terminal
from capsweep.cli import sweep_options
from capsweep.config import compose, places
from capsweep.config.overrides import render
from capsweep.config.places import Places
from capsweep.errors import UserError
from capsweep.evaluation import averaged_scores, figures
from capsweep.ledger.ledger import Ledger, load_predictions
from capsweep.ledger.listing import find_signature
from capsweep.report import table
from capsweep.report.evaluation_tables import (
    EnsembleRow,
    EvaluationTable,
    SeedsRow,
    make_ensemble_table,
    make_seeds_table,
)
from capsweep.report.published import find_published
from capsweep.report.trained import describe_trained, warn_of_cuts
from capsweep.storage.files import write_text
from capsweep.sweep import more_seeds
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep
from capsweep.terminal import count_of

if TYPE_CHECKING:  # it imports torch, which an ensemble does not need
    from capsweep.evaluation.attack import AttackOptions

Value = TypeVar("Value")
# Cells of a field of a sweep's table, values of those finished, and fields of an evaluation's row.
Group: TypeAlias = tuple[list[Point], list[Value], dict[str, Any]]
Content: TypeAlias = dict[str, Any]  # of a file in the evals/ of a cell
# Takes a trained cell and its stored predictions; gives names and contents of files.
EvaluateNetwork: TypeAlias = Callable[..., Iterable[tuple[str, Content]]]
SETTINGS = ("eps", "targeted", "steps", "restarts", "examples")  # of attacks
CROPS_NOTE = (
    "single crop: test error of the crop in the middle, as each cell stored it. 13 crops: that and "
    "those 1, 2 and 3 pixels off it along both diagonals, their scores averaged."
)


@dataclass(frozen=True)
class SweepCells:
    """The cells of a sweep as chosen."""

    sweep: Sweep
    points: Sequence[Point]
    ledger: Ledger
    places: Places

    def evaluate_points(self, evaluate: Callable[[Point], Value]) -> list[Group[Value]]:
        """Every row and column of the sweep's table; equal cells are evaluated once. Raises
        UserError where none is finished.
        """
        entries = self.ledger.entries_of(point.cell for point in self.points)
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
                    "footnotes": table.dataset_notes(points),
                }
                groups.append((points, [values[p.cell.signature] for p in finished], fields))
        if not values:
            raise UserError(f"no cell of {self.sweep.name} is finished; run the sweep first")
        return groups

    def evaluate_networks(
        self, device: str, evaluate: EvaluateNetwork
    ) -> list[Group[list[Content]]]:
        """The same for what is computed from a network; each content becomes a file in the evals/
        of its cell.
        """
        from capsweep.evaluation.checkpoint import CellLoader, find_device

        loader = CellLoader(self.ledger, self.places.data, find_device(device))

        def evaluate_point(point: Point) -> list[Content]:
            name, contents = point.cell.signature, []
            for file, content in evaluate(*loader.load_tested(name, point.cell.config)):
                text = json.dumps(content, indent=2, allow_nan=False)
                path = self.ledger.write_evaluation(name, file, f"{text}\n".encode())
                print(f"{point.name}: {path}", flush=True)
                contents.append(content)
            return contents

        return self.evaluate_points(evaluate_point)

    def publish_table(self, name: str, answer: EvaluationTable) -> None:
        """Print a table, its warnings and notes, and write them to the reports of the sweep."""
        notes = [describe_trained(self.sweep, self.points), *answer.notes]
        answer = replace(answer, notes=notes, warnings=warn_of_cuts(self.points))
        console = terminal.make_console()
        for warning in answer.warnings:
            terminal.print_paragraph(console, warning)
        terminal.print_table(console, answer.as_terminal())
        for note in answer.notes:
            terminal.print_paragraph(console, note)
        path = self.places.storage / "reports" / self.sweep.report_name / name
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


def run_ensemble(parsed: argparse.Namespace) -> None:
    """The seeds of each row as one network, from stored predictions."""
    cells, rows = _load_cells(parsed), []
    for points, names, fields in cells.evaluate_points(lambda point: point.cell.signature):
        members = {name: load_predictions(cells.ledger, name) for name in names}
        single = tuple(averaged_scores.measure_error(*member) for member in members.items())
        wrong_M = averaged_scores.find_wrong_together(members) if len(members) > 1 else None
        row = EnsembleRow(
            single=single,
            wrong=None if wrong_M is None else int(wrong_M.sum()),
            total=0 if wrong_M is None else len(wrong_M),
            published=find_published(cells.sweep, points[:1], members=len(single)),
            **fields,
        )
        rows.append(row)
    cells.publish_table("ensemble.md", make_ensemble_table(cells.sweep, rows))


def run_multicrop(parsed: argparse.Namespace) -> None:
    """The 13-crop test of every cell; a file in each one's evals/, and a table."""
    cells = _load_cells(parsed)
    groups = cells.evaluate_networks(
        parsed.device,
        lambda *tested: [(averaged_scores.CROPS_FILE, averaged_scores.measure_crops(*tested))],
    )
    columns = {"single crop": itemgetter("single_error"), "13 crops": itemgetter("multicrop_error")}
    rows = _make_rows(groups, columns, [()])
    answer = make_seeds_table(cells.sweep, "13-crop test", rows, list(columns), [CROPS_NOTE])
    cells.publish_table("multicrop.md", answer)


def run_attack(parsed: argparse.Namespace) -> None:
    """Attack every cell; files in each one's evals/, and a table."""
    from capsweep.evaluation.attack import AttackOptions, attack_cell

    settings = {name: getattr(parsed, name) for name in SETTINGS}
    cells, options = _load_cells(parsed), AttackOptions(methods=parsed.method, **settings)
    groups = cells.evaluate_networks(
        parsed.device,
        lambda cell, stored: attack_cell(cell, options, stored),
    )
    rate = "success_rate" if options.targeted else "accuracy"
    columns: dict[str, Callable[[Content], float]] = {"clean": itemgetter("clean_accuracy")}
    for place, eps in enumerate(options.eps):
        columns[f"eps {eps:g}"] = lambda content, place=place: content["attacks"][place][rate]
    rows = _make_rows(groups, columns, [(method,) for method in options.methods])
    contents = [content for _, of_cells, _ in groups for some in of_cells for content in some]
    notes, title = _describe_attacks(options, contents), f"{options.aim_name} attacks"
    answer = make_seeds_table(cells.sweep, title, rows, list(columns), notes, ["method"])
    cells.publish_table(f"attack-{options.aim_name}.md", answer)


def _make_rows(
    groups: Sequence[Group[list[Content]]],
    columns: Mapping[str, Callable[[Content], float]],
    labels: Sequence[tuple[str, ...]],
) -> list[SeedsRow]:
    """A row for each group and label. columns: what reads a number from a content; labels: of the
    contents of each cell, in order.
    """
    rows = []
    for _, of_cells, fields in groups:
        for index, label in enumerate(labels):
            contents = [contents[index] for contents in of_cells]
            values = {
                name: [read(content) for content in contents] for name, read in columns.items()
            }
            examples = max((content["examples"] for content in contents), default=0)
            rows.append(SeedsRow(beside=label, examples=examples, values=values, **fields))
    return rows


def _describe_attacks(options: "AttackOptions", contents: Sequence[Content]) -> list[str]:
    rate = "test accuracy that is left"
    if options.targeted:
        rate = "rate of success of attacks at each of the other classes in turn, mean over both"
    bounds = ", ".join(dict.fromkeys(content["bounds"] for content in contents))
    attacks = [attack for content in contents for attack in content["attacks"]]
    flat, tries = (sum(attack[key] for attack in attacks) for key in ("flat", "tries"))
    notes = [
        "clean: test accuracy of the unchanged images, which was checked to be what each cell "
        f"stored. eps: {rate} when no value is changed by more than eps; the attacker may leave an "
        "image alone. What an attack finds is the least that there is.",
        f"eps is in units of the network's input; bounds of changed values: {bounds}.",
    ]
    for method in options.methods:
        attack = options.list_attacks(method, seed=0)[0]
        budget = f"{count_of(attack.steps, 'step')} of {attack.step / attack.eps:g} eps"
        budget += f", {count_of(attack.restarts, 'restart')}"
        notes.append(f"{method}: {budget}, seeded by the cell's seed.")
    if flat:
        cause = "what a network withstands for that reason is not robustness"
        notes.append(f"In {flat} of {tries} tries the loss had no gradient at the image: {cause}.")
    return notes


def run_figure(parsed: argparse.Namespace) -> None:
    """Draw a figure of a cell into its evals/, the numbers beside it."""
    from capsweep.evaluation.checkpoint import CellLoader, find_device

    given = {"storage": parsed.storage, "data": parsed.data_dir, "ledger": parsed.ledger}
    texts = [render(f"places.{key}", value) for key, value in given.items() if value is not None]
    resolved = places.resolve(compose.cell(texts).config["places"])
    loader = CellLoader(Ledger(resolved.ledger), resolved.data, find_device(parsed.device))
    signature = find_signature(loader.ledger, parsed.signature)
    figures.draw_figure(parsed.figure, loader, signature, parsed)
