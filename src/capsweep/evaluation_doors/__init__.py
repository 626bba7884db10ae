"""`capsweep eval ...`: what is asked of finished cells beyond their errors."""

import argparse
from collections.abc import Callable

from capsweep import choosing

Door = Callable[[argparse.Namespace], int]


def add(doors: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `eval` and its commands to the parser."""
    text = "ask more of finished cells than their errors"
    evaluation = doors.add_parser("eval", help=text, description=text)
    commands = evaluation.add_subparsers(metavar="COMMAND", required=True)
    text = "add the scores of each row's seeds, from stored predictions"
    choosing.add(_command(commands, "ensemble", _ensemble, text))
    text = "test the networks of each row on images that were changed to mislead them"
    _add_attack(_command(commands, "attack", _attack, text))
    text = "average the scores of 13 crops of each test image, for data sets of cropped images"
    multicrop = _command(commands, "multicrop", _multicrop, text)
    choosing.add(multicrop)
    _add_device(multicrop)
    text = "draw how far votes are from the class capsules they vote for, by routing iteration"
    _add_vote_distances(_command(commands, "vote-distances", _vote_distances, text))


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    door: Door,
    text: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(door=door)
    return command


def _add_device(command: argparse.ArgumentParser) -> None:
    command.add_argument("--device", default="auto", help="auto (default): a GPU if any; cpu, ...")


def _add_attack(command: argparse.ArgumentParser) -> None:
    choosing.add(command)
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
    _add_device(command)


def _add_vote_distances(command: argparse.ArgumentParser) -> None:
    command.add_argument("signature", help="a signature, or its first letters")
    command.add_argument("--weights", default="R", help="R (default): assignments; Ra: activated")
    command.add_argument("--distance", default="squared", help="squared (default) or plain")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--images", type=int, default=3, help="the first so many test images (3)")
    which.add_argument("--examples", help="these test images: 0,5,7")
    command.add_argument("--bins", type=int, default=12, help="of equal width (default 12)")
    command.add_argument(
        "--range", default="0.05", help="of distances (default 0.05); full: all, in a log scale"
    )
    _add_device(command)
    command.add_argument("--data-dir", help="where the data sets are")
    command.add_argument("--storage", help="where results are; default: outputs")
    command.add_argument("--ledger", help="a folder or URL; default: STORAGE/ledger")


def _ensemble(parsed: argparse.Namespace) -> int:
    from capsweep.evaluation_doors import ensemble

    return ensemble.main(parsed)


def _attack(parsed: argparse.Namespace) -> int:
    from capsweep.evaluation_doors import attack

    return attack.main(parsed)


def _multicrop(parsed: argparse.Namespace) -> int:
    from capsweep.evaluation_doors import multicrop

    return multicrop.main(parsed)


def _vote_distances(parsed: argparse.Namespace) -> int:
    from capsweep.evaluation_doors import vote_distances

    return vote_distances.main(parsed)
