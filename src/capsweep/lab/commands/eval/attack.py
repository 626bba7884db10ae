"""`capsweep eval attack SWEEP`: how networks classify images that are changed to mislead them."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from capsweep.cli.program import DEVICE, SWEEP, Command, whole_number
from capsweep.lab.commands import option

if TYPE_CHECKING:  # it imports torch
    from capsweep.lab.evaluation.attack import Attack

METHODS = ("fgsm", "bim", "pgd")


def _parse_eps(text: str) -> tuple[float, ...]:
    with suppress(ValueError):
        numbers = tuple(dict.fromkeys(float(word) for word in text.split(",")))
        if all(0 < number < float("inf") for number in numbers):
            return numbers
    raise argparse.ArgumentTypeError(f"must be above 0, such as 0.1,0.2, got {text}")


def _parse_methods(text: str) -> tuple[str, ...]:
    methods = tuple(dict.fromkeys(text.split(",")))
    if not {*methods} <= {*METHODS}:
        raise argparse.ArgumentTypeError(f"must be of {', '.join(METHODS)}, got {text}")
    return methods


OPTIONS = (
    option("--method", "of fgsm (default), bim, pgd", type=_parse_methods, default="fgsm"),
    option("--eps", "largest change of a value: 0.1,0.2", type=_parse_eps, default="0.1"),
    option("--steps", "of bim and pgd (default 10)", type=whole_number(1), default=10),
    option("--restarts", "of pgd (default 5)", type=whole_number(1), default=5),
    option("--targeted", "at each of the other classes; default: at any", action="store_true"),
    option("--examples", "the first so many test examples; all", type=whole_number(1)),
)
COMMANDS: dict[str, Command] = {
    "attack": ("test networks on images that mislead them", (*SWEEP, *OPTIONS, DEVICE))
}


def run_attack(parsed: argparse.Namespace) -> None:
    """Attack every cell; files in each one's evals/, and a table."""
    from capsweep.lab.evaluation.attack import attack_cell, make_attack
    from capsweep.lab.evaluation.sweep_cells import SEEDS_HEADER, describe_seeds, load_cells

    cells, budget = load_cells(parsed), (parsed.targeted, parsed.steps, parsed.restarts)
    attacks = {
        method: [make_attack(method, eps, *budget) for eps in parsed.eps]
        for method in parsed.method
    }
    first = next(iter(attacks.values()))[0]
    evaluated = cells.evaluate_networks(
        parsed.device, lambda cell, stored: attack_cell(cell, stored, attacks, parsed.examples)
    )
    lines = []
    for place, of_cells in evaluated:
        for number, method in enumerate(attacks):
            contents = [contents[number] for contents in of_cells]
            rates = [[c["clean_accuracy"] for c in contents]]
            for at in range(len(parsed.eps)):
                rates.append([c["attacks"][at][first.rate] for c in contents])
            lines.append((place, [method, *describe_seeds(place, contents, rates)]))
    header = ["method", *SEEDS_HEADER, "clean", *(f"eps {eps:g}" for eps in parsed.eps)]
    contents = [content for _, of_cells in evaluated for some in of_cells for content in some]
    notes = _describe_attacks([each[0] for each in attacks.values()], contents)
    name = f"attack-{first.aim_name}"
    cells.publish_table(name, f"{first.aim_name} attacks", header, lines, notes)


def _describe_attacks(
    attacks: "Sequence[Attack]", contents: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return notes on what the numbers are. attacks: the first of each method."""
    from capsweep.runtime.terminal import count_of

    rate = "test accuracy that is left"
    if attacks[0].targeted:
        rate = "rate of success of attacks at each of the other classes in turn, mean over both"
    bounds = ", ".join(dict.fromkeys(content["bounds"] for content in contents))
    results = [result for content in contents for result in content["attacks"]]
    flat, tries = (sum(result[key] for result in results) for key in ("flat", "tries"))
    notes = [
        "clean: test accuracy of the unchanged images, which was checked to be what each cell "
        f"stored. eps: {rate} when no value is changed by more than eps; the attacker may leave an "
        "image alone. What an attack finds is the least that there is.",
        f"eps is in units of the network's input; bounds of changed values: {bounds}.",
    ]
    for each in attacks:
        budget = f"{count_of(each.steps, 'step')} of {each.step / each.eps:g} eps"
        budget += f", {count_of(each.restarts, 'restart')}"
        notes.append(f"{each.method}: {budget}, seeded by the cell's seed.")
    if flat:
        cause = "what a network withstands for that reason is not robustness"
        notes.append(f"In {flat} of {tries} tries the loss had no gradient at the image: {cause}.")
    return notes
