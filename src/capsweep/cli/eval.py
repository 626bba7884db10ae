"""`capsweep eval ...`: what is computed from finished cells beyond their errors."""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from operator import itemgetter
from typing import TYPE_CHECKING

from capsweep.cli.parser import PLACES, SWEEP
from capsweep.cli.sweep_cells import Content, Group, SweepCells, load_cells, print_evaluation
from capsweep.config import compose, package_files, places
from capsweep.config.overrides import render
from capsweep.errors import NotApplicableError, UserError
from capsweep.lab.evaluation import averaged_scores, figures
from capsweep.ledger.ledger import Ledger, load_predictions
from capsweep.ledger.listing import find_signature
from capsweep.report import routing_table
from capsweep.report.evaluation_tables import (
    EnsembleRow,
    SeedsRow,
    make_ensemble_table,
    make_seeds_table,
)
from capsweep.report.published import find_published
from capsweep.report.routing_table import RoutingGroup
from capsweep.runtime import terminal
from capsweep.runtime.terminal import count_of

if TYPE_CHECKING:  # it imports torch, which an ensemble does not need
    from capsweep.lab.evaluation.attack import AttackOptions
    from capsweep.lab.evaluation.checkpoint import CellLoader

SETTINGS = ("eps", "targeted", "steps", "restarts", "examples")  # of attacks
CROPS_NOTE = (
    "single crop: test error of the crop in the middle, as each cell stored it. 13 crops: that and "
    "those 1, 2 and 3 pixels off it along both diagonals, their scores averaged."
)


def run_ensemble(parsed: argparse.Namespace) -> None:
    """The seeds of each row as one network, from stored predictions."""
    cells, rows = load_cells(parsed), []
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
    cells = load_cells(parsed)
    groups = cells.evaluate_networks(
        parsed.device,
        lambda *tested: [(averaged_scores.CROPS_FILE, averaged_scores.measure_crops(*tested))],
        averaged_scores.CROPS_FILE,
    )
    columns = {"single crop": itemgetter("single_error"), "13 crops": itemgetter("multicrop_error")}
    rows = _make_rows(groups, columns, [()])
    answer = make_seeds_table(cells.sweep, "13-crop test", rows, list(columns), [CROPS_NOTE])
    cells.publish_table("multicrop.md", answer)


def run_attack(parsed: argparse.Namespace) -> None:
    """Attack every cell; files in each one's evals/, and a table."""
    from capsweep.lab.evaluation.attack import AttackOptions, attack_cell

    settings = {name: getattr(parsed, name) for name in SETTINGS}
    cells, options = load_cells(parsed), AttackOptions(methods=parsed.method, **settings)
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


def run_routing(parsed: argparse.Namespace) -> None:
    """Measure the routing of the cells of a sweep, or of one cell."""
    if is_signature(parsed.sweep):
        _measure_cell(parsed)
    else:
        _measure_sweep(parsed)


def is_signature(target: str) -> bool:
    """Whether a target is the first letters of a signature, and no sweep."""
    sweep = package_files.find_folder("sweeps") / f"{target}.yaml"
    return re.fullmatch("[0-9a-f]+", target) is not None and not sweep.is_file()


def _measure_cell(parsed: argparse.Namespace) -> None:
    """The measures of one cell, on the screen and in its evals/."""
    from capsweep.lab.evaluation import routing_measures

    names = [name for name, _ in SWEEP[1:] if name not in PLACES]
    given = [n for n in names if getattr(parsed, n.removeprefix("--"))]
    if given:
        raise UserError(
            f"{', '.join(given)}: chooses cells of a sweep, and {parsed.sweep} is one cell; leave "
            "it out"
        )
    loader, signature = _open_cell(parsed, parsed.sweep)
    tested = loader.load_tested(signature)
    try:
        content = routing_measures.measure_routing(*tested, parsed.examples)
    except NotApplicableError as error:
        raise NotApplicableError(f"{signature}: {error}") from error
    text = routing_table.render_content(content)
    path = loader.ledger.write_evaluation(signature, routing_measures.FILE, f"{text}\n".encode())
    console = terminal.make_console(stderr=parsed.json)
    terminal.print_line(console, path)
    if parsed.json:
        print(routing_table.render_content({"cell": signature, **content}))
        return
    for each in routing_table.make_cell_tables(content):
        terminal.print_table(console, each)
    for note in (*routing_table.NOTES, *routing_table.describe_exceptions([content])):
        terminal.print_paragraph(console, note)


def _measure_sweep(parsed: argparse.Namespace) -> None:
    """The measures of every cell that routes; a file in each one's evals/, table, data, picture."""
    from capsweep.lab.evaluation.routing_picture import draw_routing

    cells, console = load_cells(parsed), terminal.make_console(stderr=parsed.json)
    with redirect_stdout(sys.stderr if parsed.json else sys.stdout):
        groups = _measure_groups(cells, parsed)
    rows = {group.label: group.contents for group in groups}
    try:
        picture = draw_routing(rows, f"{cells.sweep.name}: routing of trained cells")
    except NotApplicableError as error:
        raise NotApplicableError(f"{cells.sweep.name}: {error}") from error
    answer = cells.complete_table(routing_table.make_routing_table(cells.sweep, groups))
    text = routing_table.render_content(routing_table.describe_groups(answer, groups))
    if parsed.json:
        print(text)
    else:
        print_evaluation(answer, console)
    cells.write_report("routing.md", answer.as_markdown().encode(), console)
    cells.write_report("routing.json", f"{text}\n".encode(), console)
    cells.write_report("routing.png", picture, console)


def _measure_groups(cells: SweepCells, parsed: argparse.Namespace) -> list[RoutingGroup]:
    from capsweep.lab.evaluation.checkpoint import TrainedCell
    from capsweep.lab.evaluation.routing_measures import FILE, measure_routing
    from capsweep.ledger.ledger import Predictions

    reasons: dict[str, str] = {}

    def evaluate(cell: TrainedCell, stored: Predictions) -> list[tuple[str, Content]]:
        try:
            return [(FILE, measure_routing(cell, stored, parsed.examples))]
        except NotApplicableError as error:
            reasons[cell.name] = str(error)
            return []

    groups = []
    for points, of_cells, fields in cells.evaluate_networks(parsed.device, evaluate, FILE):
        contents = [content for contents in of_cells for content in contents]
        why = [reasons[p.cell.signature] for p in points if p.cell.signature in reasons]
        groups.append(RoutingGroup(contents, why[0] if why else None, fields))
    return groups


def run_figure(parsed: argparse.Namespace) -> None:
    """Draw a figure of a cell into its evals/, the numbers beside it."""
    loader, signature = _open_cell(parsed, parsed.signature)
    figures.draw_figure(parsed.figure, loader, signature, parsed)


def _open_cell(parsed: argparse.Namespace, letters: str) -> "tuple[CellLoader, str]":
    """What loads cells, and the signature of the one that begins with these letters."""
    from capsweep.lab.evaluation.checkpoint import CellLoader, find_device

    given = {"storage": parsed.storage, "data": parsed.data_dir, "ledger": parsed.ledger}
    texts = [render(f"places.{key}", value) for key, value in given.items() if value is not None]
    resolved = places.resolve(compose.cell(texts).config["places"])
    loader = CellLoader(Ledger(resolved.ledger), resolved.data, find_device(parsed.device))
    return loader, find_signature(loader.ledger, letters)
