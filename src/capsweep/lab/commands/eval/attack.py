"""`capsweep eval attack SWEEP`: how networks classify images that are changed to mislead them."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from capsweep.cli.parser import DEVICE, SWEEP, Command, Option, whole_number

if TYPE_CHECKING:  # it imports torch
    from capsweep.lab.evaluation.attack import AttackOptions

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


def _count(name: str, text: str, default: int | None) -> Option:
    return name, {"help": text, "type": whole_number(1), "default": default}


OPTIONS: tuple[Option, ...] = (
    (
        "--method",
        {"help": "of fgsm (default), bim, pgd", "type": _parse_methods, "default": "fgsm"},
    ),
    (
        "--eps",
        {"help": "largest change of a value: 0.1,0.2", "type": _parse_eps, "default": "0.1"},
    ),
    _count("--steps", "of bim and pgd (default 10)", 10),
    _count("--restarts", "of pgd (default 5)", 5),
    (
        "--targeted",
        {"help": "at each of the other classes in turn; default: at any", "action": "store_true"},
    ),
    _count("--examples", "the first so many test examples; all", None),
)
COMMANDS: dict[str, Command] = {
    "attack": ("test networks on images that mislead them", (*SWEEP, *OPTIONS, DEVICE))
}
SETTINGS = ("eps", "targeted", "steps", "restarts", "examples")


def run_attack(parsed: argparse.Namespace) -> None:
    """Attack every cell; files in each one's evals/, and a table."""
    from capsweep.lab.evaluation.attack import AttackOptions, attack_cell
    from capsweep.lab.evaluation.sweep_cells import SEEDS_HEADER, describe_seeds, load_cells

    settings = {name: getattr(parsed, name) for name in SETTINGS}
    cells, options = load_cells(parsed), AttackOptions(methods=parsed.method, **settings)
    evaluated = cells.evaluate_networks(
        parsed.device, lambda cell, stored: attack_cell(cell, options, stored)
    )
    lines = []
    for place, of_cells in evaluated:
        for number, method in enumerate(options.methods):
            contents = [contents[number] for contents in of_cells]
            rates = [[c["clean_accuracy"] for c in contents]]
            for at in range(len(options.eps)):
                rates.append([c["attacks"][at][options.rate] for c in contents])
            lines.append((place, [method, *describe_seeds(place, contents, rates)]))
    header = ["method", *SEEDS_HEADER, "clean", *(f"eps {eps:g}" for eps in options.eps)]
    contents = [content for _, of_cells in evaluated for some in of_cells for content in some]
    title, notes = f"{options.aim_name} attacks", _describe_attacks(options, contents)
    cells.publish_table(f"attack-{options.aim_name}", title, header, lines, notes)


def _describe_attacks(options: "AttackOptions", contents: Sequence[Mapping[str, Any]]) -> list[str]:
    from capsweep.runtime.terminal import count_of

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
