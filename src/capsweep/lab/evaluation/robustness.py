"""How networks of a sweep withstand attacks, their own and transferred: `capsweep eval attack`.

Each network is attacked by its own gradients (a white-box attack). With `--transfer ARM`, the
images that were changed on the networks of this arm are also tried on the networks of all other
arms, and back. If images from elsewhere fool a network more often than its own, its gradients are
masked (Athalye et al. 2018), or its own attack is too weak.
"""

import hashlib
import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeAlias

from capsweep.errors import UserError
from capsweep.lab.evaluation import sweep_cells
from capsweep.lab.evaluation.attack import make_attack, make_threat_model, measure_attack
from capsweep.lab.evaluation.checkpoint import CellLoader, TrainedCell
from capsweep.lab.evaluation.sweep_cells import Content, Line, SweepCells
from capsweep.report.cells import TableCell
from capsweep.report.grid import describe_row
from capsweep.report.table import CellGroup, ResultTable
from capsweep.runtime.terminal import count_of
from capsweep.sweep.expand import Point

EPS_SCALE = "input"  # written to files: eps is in units of the network's input
OWN = "itself"
TRANSFER_NOTE = (
    "made on: the network whose gradients changed the images; itself: a white-box attack. Else it "
    "is the network of that row with the same data set and seed. For each image, the first start "
    "that fools that network is tried here, or the last start. If images made elsewhere fool a "
    "network more often than its own do, its gradients are masked, or its own attack is too weak."
)
Pair: TypeAlias = tuple[CellGroup, CellGroup]  # images are made on one, and tried on the other
Targets: TypeAlias = dict[str, dict[str, Point]]  # cells on which images are tried, by signatures


def attack_cell(
    cell: TrainedCell, loader: CellLoader, options: Namespace, targets: Targets
) -> Iterator[tuple[str, Content]]:
    """Attack a cell with each method, and try the changed images on it and on its targets.

    Args:
        cell: The attacked cell.
        loader: Object that loads cells onto a device.
        options: Options of the command: method, eps, steps, restarts, targeted and examples.
        targets: The targets of the cells.

    Yields:
        For each method and network, the name and content of a file for the `evals/` of the
        attacked cell. For each eps, the content has the counts and a rate: the accuracy under
        attack or, for targeted attacks, the success rate.

    Raises:
        UserError: The images show several classes, or a network does not reproduce the stored
            predictions of the unchanged images; the error names the cell.
    """
    points = targets.get(cell.name, {}).values()
    networks = [cell, *(loader.load(p.cell.signature, p.cell.config) for p in points)]
    bounds = make_threat_model(cell, slice(0, 1)).bounds
    retests = [network.verify(options.examples) for network in networks]
    examples = retests[0].examples
    aim = "targeted" if options.targeted else "untargeted"
    for method in options.method:
        attacks = [make_attack(method, eps, options, cell.config["seed"]) for eps in options.eps]
        settings = [[asdict(attack) for attack in attacks], EPS_SCALE, examples]
        digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
        measured = [measure_attack(networks, attack, examples) for attack in attacks]
        for place, (network, retest) in enumerate(zip(networks, retests, strict=True)):
            where = f"-on-{network.name}" if place else ""
            content: Content = {
                "method": method,
                "aim": aim,
                "made_on": cell.name,
                "tried_on": network.name,
                "eps_scale": EPS_SCALE,
                "bounds": bounds,
                "examples": examples,
                "clean_accuracy": (retest.examples - retest.wrong) / retest.examples,
                "ties": retest.ties,
                "attacks": [of_networks[place] for of_networks in measured],
            }
            yield f"attack-{method}-{aim}-{digest}{where}.json", content


def publish_attacks(cells: SweepCells, parsed: Namespace) -> None:
    """Attack every finished cell of a sweep, and publish a table of the results.

    The table has a row for each method and each group of cells that differ only in the seed. With
    `--transfer`, there are further rows for images that were made on other cells. Each result is
    stored in the folder `evals/` of the cell on which the images were made.

    Raises:
        UserError: No cell is finished, the images of a data set show several classes, a network
            does not reproduce its stored predictions, or no cells fit for `--transfer`.
    """
    pairs = [] if parsed.transfer is None else pair_groups(cells.table, parsed.transfer)
    loader, targets = cells.make_loader(parsed.device), Targets()
    for source, target in pairs:
        for made_on, tried_on in match_cells(source, target):
            targets.setdefault(made_on.signature, {})[tried_on.signature] = tried_on.point
    attack = partial(attack_cell, loader=loader, options=parsed, targets=targets)
    evaluated = cells.evaluate_networks(loader, attack)
    every = [content for _, of_cells in evaluated for contents in of_cells for content in contents]
    rate, aim = ("success_rate", "targeted") if parsed.targeted else ("accuracy", "untargeted")
    lines = list[Line]()
    for group, method, made_on, contents in _list_rows(cells.table, every, pairs, parsed.method):
        rates = [[c["clean_accuracy"] for c in contents]]
        rates += [[c["attacks"][at][rate] for c in contents] for at in range(len(parsed.eps))]
        names = [method, made_on] if pairs else [method]
        lines.append((group, [*names, *sweep_cells.describe_seeds(group, contents, rates)]))
    names = ["method", "made on"] if pairs else ["method"]
    header = [*names, *sweep_cells.SEEDS_HEADER, "clean", *(f"eps {e:g}" for e in parsed.eps)]
    notes = [*_describe_attacks(every), *[TRANSFER_NOTE] * bool(pairs), sweep_cells.SEEDS_NOTE]
    cells.publish_table(f"attack-{aim}", f"{aim} attacks", header, lines, notes)


def pair_groups(table: ResultTable, arm: str) -> list[Pair]:
    """Pair the rows of an arm with those of all other arms, in both directions.

    Raises:
        UserError: The sweep has no such arm, or no two cells fit.
    """
    arms = list(dict.fromkeys(group.point.arm for group in table.groups))
    if arm not in arms:
        raise UserError(f"--transfer {arm}: no such arm; have {', '.join(arms)}")
    pairs = [
        (source, target)
        for source in table.groups
        for target in table.groups
        if (source.point.arm == arm) != (target.point.arm == arm)
        if match_cells(source, target)
    ]
    if not pairs:
        raise UserError(
            f"--transfer {arm}: no other arm has a finished cell with the data set and the seed of "
            f"a finished cell of {arm}; train both arms with the same DATASET and SEEDS"
        )
    return pairs


def match_cells(source: CellGroup, target: CellGroup) -> list[tuple[TableCell, TableCell]]:
    """Return pairs of finished cells of two rows, with the same seed and the same test images."""
    pairs = [(cell, target.finished.get(seed)) for seed, cell in source.finished.items()]
    return [(a, b) for a, b in pairs if b is not None and _find_data(a) == _find_data(b)]


def _find_data(cell: TableCell) -> tuple[Any, ...]:
    config = cell.point.cell.config
    return config["dataset"], config["limit_batches"]


def _list_rows(
    table: ResultTable, every: Sequence[Content], pairs: Sequence[Pair], methods: Sequence[str]
) -> Iterator[tuple[CellGroup, str, str, list[Content]]]:
    """Yield the rows of the table: for each group and method, its own attack, then the others.

    Args:
        table: The cells on which the images were tried.
        every: The results of all attacks.
        pairs: The pairs of groups for attacks with images that were made elsewhere.
        methods: The methods of the attacks.

    Yields:
        The group, the method, OWN or the name of the row on whose cells the images were made, and
        the results, one for each seed.
    """
    results = {(c["made_on"], c["tried_on"], c["method"]): c for c in every}
    for group in table.groups:
        sources = [source for source, target in pairs if target is group]
        for method in methods:
            for source in (group, *sources):
                matched = [(a.signature, b.signature) for a, b in match_cells(source, group)]
                made_on = OWN if source is group else describe_row(source.coordinates)
                contents = [results[a, b, method] for a, b in matched]
                yield group, method, made_on, contents


def _describe_attacks(every: Sequence[Content]) -> list[str]:
    """Return notes that explain the numbers in the table of attacks."""
    contents = [content for content in every if content["made_on"] == content["tried_on"]]
    results = [result for content in contents for result in content["attacks"]]
    rate = "test accuracy under attack"
    if results[0]["targeted"]:
        rate = "success rate of attacks with each of the other classes in turn, mean over all tries"
    bounds = ", ".join(dict.fromkeys(content["bounds"] for content in contents))
    notes = [
        "clean: test accuracy on the unchanged images, checked against the predictions that each "
        f"cell stored. eps: {rate} if no value changes by more than eps; the attacker may leave an "
        "image unchanged. A stronger attack could succeed more often.",
        f"eps is in units of the network's input; bounds of changed values: {bounds}.",
    ]
    for method, of in {result["method"]: result for result in results}.items():
        steps, restarts = count_of(of["steps"], "step"), count_of(of["restarts"], "restart")
        reach = f"{of['step'] / of['eps']:g} eps"
        notes.append(f"{method}: {steps} of {reach}, {restarts}, seeded by the cell's seed.")
    flat, tries = (sum(result[key] for result in results) for key in ("flat", "tries"))
    if flat:
        cause = "a network that withstands an attack for that reason is not robust"
        notes.append(f"In {flat} of {tries} tries the loss had no gradient at the image; {cause}.")
    return notes
