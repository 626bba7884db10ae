"""`capsweep eval ...`: what is asked of finished cells beyond their errors."""

import argparse

from capsweep.cli import sweep_options
from capsweep.cli.command import Commands, add_command, add_group
from capsweep.evaluation_doors import figures


def add_parser(commands: Commands) -> None:
    """Add `eval` and its commands to the parser."""
    text = "ask more of finished cells than their errors"
    commands = add_group(commands, "eval", text)
    text = "add the scores of each row's seeds, from stored predictions"
    ensemble = add_command(commands, "ensemble", _ensemble, text)
    sweep_options.add_options(ensemble)
    text = "test the networks of each row on images that were changed to mislead them"
    attack = add_command(commands, "attack", _attack, text)
    _add_attack(attack)
    text = "average the scores of 13 crops of each test image, for data sets of cropped images"
    multicrop = add_command(commands, "multicrop", _multicrop, text)
    sweep_options.add_options(multicrop)
    figures.add_device(multicrop)
    for command in (ensemble, attack, multicrop):
        command.add_argument("--json", action="store_true", help="for programs")
    figures.add(commands)


def _add_attack(command: argparse.ArgumentParser) -> None:
    sweep_options.add_options(command)
    command.add_argument("--method", default="fgsm", help="fgsm (default), bim, pgd, or several")
    command.add_argument("--eps", default="0.1", help="largest change of a value: 0.1,0.2,0.3")
    command.add_argument(
        "--eps-scale",
        default="input",
        help="input (default): of what the network is shown; pixels: of intensities in 0..1",
    )
    command.add_argument("--steps", type=int, default=10, help="of bim and pgd (default 10)")
    command.add_argument("--restarts", type=int, default=5, help="of pgd (default 5)")
    aim = command.add_mutually_exclusive_group()
    aim.add_argument("--targeted", action="store_true", help="at each of the other classes in turn")
    aim.add_argument(
        "--untargeted", dest="targeted", action="store_false", help="at any other class (default)"
    )
    command.add_argument("--examples", type=int, help="the first so many test examples; all")
    figures.add_device(command)


def _ensemble(parsed: argparse.Namespace) -> int:
    from capsweep.evaluation_doors import ensemble

    return ensemble.main(parsed)


def _attack(parsed: argparse.Namespace) -> int:
    from capsweep.evaluation_doors import attack

    return attack.main(parsed)


def _multicrop(parsed: argparse.Namespace) -> int:
    from capsweep.evaluation_doors import multicrop

    return multicrop.main(parsed)
