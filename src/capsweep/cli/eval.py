"""`capsweep eval ...`: what is computed from finished cells beyond their errors."""

import argparse
from collections.abc import Callable
from typing import Any

from capsweep.cli import sweep_options
from capsweep.cli.command import Commands, GoneOption, add_command, add_places
from capsweep.evaluation import figures
from capsweep.evaluation.figures import whole_number

METHODS = ("fgsm", "bim", "pgd")  # of attacks
READ_VOTES = "leave it out: the figure counts votes by assignment, up to a squared distance of 0.05"
GONE_OPTIONS = {
    "vote-distances": dict.fromkeys(("--weights", "--distance", "--bins", "--range"), READ_VOTES),
    "segmentation": {"--starred": "use --correct and --failures"},
}


class LateParser(argparse.ArgumentParser):
    """A parser whose command adds its options once it is typed, since that takes an import."""

    add_late: Callable[[argparse.ArgumentParser], None] | None = None

    def parse_known_args(self, *args: Any, **options: Any) -> Any:
        """As its base."""
        if self.add_late is not None:
            self.add_late(self)
        return super().parse_known_args(*args, **options)


def add_parser(commands: Commands) -> None:
    """Add `eval` and its commands to the parser."""
    text = "ask more of finished cells than their errors"
    group = commands.add_parser("eval", help=text, description=text)
    evaluations: Commands = group.add_subparsers(
        metavar="COMMAND", required=True, parser_class=LateParser
    )
    for name, text in {
        "ensemble": "add the scores of each row's seeds, from stored predictions",
        "attack": "test the networks of each row on images that were changed to mislead them",
        "multicrop": "average the scores of 13 crops of each test image, for data sets of cropped "
        "images",
    }.items():
        command = add_command(evaluations, name, _evaluate_sweep, text)
        command.set_defaults(evaluation=name)
        sweep_options.add_options(command)
        command.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
        if name == "attack":
            _add_attack_options(command)
        if name != "ensemble":
            _add_device(command)
    for name, text in figures.FIGURES.items():
        command = add_command(evaluations, name, _draw_figure, text)
        command.set_defaults(figure=name)
        command.add_argument("signature", help="a signature, or its first letters")
        _add_device(command)
        command.add_argument("--data-dir", help="where the data sets are")
        add_places(command)
        for option, instead in GONE_OPTIONS.get(name, {}).items():
            command.add_argument(option, action=GoneOption, metavar=instead)
        assert isinstance(command, LateParser)
        command.add_late = lambda parser, name=name: figures.load_figure(name).add_options(parser)


def _add_device(command: argparse.ArgumentParser) -> None:
    command.add_argument("--device", default="auto", help="auto (default): a GPU if any; cpu, ...")


def _add_attack_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    text = "fgsm (default), bim, pgd, or several"
    add("--method", type=_parse_methods, default="fgsm", help=text)
    text = "largest change of a value: 0.1,0.2,0.3"
    add("--eps", type=_parse_eps, default="0.1", help=text)
    text = "leave it out: eps counts in the network's input"
    add("--eps-scale", action=GoneOption, metavar=text)
    add("--steps", type=whole_number(1), default=10, help="of bim and pgd (default 10)")
    add("--restarts", type=whole_number(1), default=5, help="of pgd (default 5)")
    aim = command.add_mutually_exclusive_group()
    text = "at each of the other classes in turn"
    aim.add_argument("--targeted", action="store_true", help=text)
    text = "at any other class (default)"
    aim.add_argument("--untargeted", dest="targeted", action="store_false", help=text)
    add("--examples", type=whole_number(1), help="the first so many test examples; all")


def _parse_methods(text: str) -> tuple[str, ...]:
    methods = tuple(dict.fromkeys(text.split(",")))
    if not set(methods) <= set(METHODS):
        raise argparse.ArgumentTypeError(f"must be of {', '.join(METHODS)}, got {text}")
    return methods


def _parse_eps(text: str) -> tuple[float, ...]:
    try:
        eps = tuple(dict.fromkeys(float(word) for word in text.split(",")))
    except ValueError:
        eps = (0.0,)
    if not all(0 < value < float("inf") for value in eps):
        raise argparse.ArgumentTypeError(f"must be numbers above 0 such as 0.1,0.2, got {text}")
    return eps


def _evaluate_sweep(parsed: argparse.Namespace) -> int:
    from capsweep.cli import eval_sweep

    return eval_sweep.COMMANDS[parsed.evaluation](parsed)


def _draw_figure(parsed: argparse.Namespace) -> int:
    """Draw a figure of a cell into its evals/, the numbers beside it."""
    from capsweep.config import compose, places
    from capsweep.config.overrides import render
    from capsweep.evaluation.checkpoint import CellLoader, find_device
    from capsweep.ledger.ledger import Ledger

    given = {"storage": parsed.storage, "data": parsed.data_dir, "ledger": parsed.ledger}
    texts = [render(f"places.{key}", value) for key, value in given.items() if value is not None]
    here = places.resolve(compose.cell(texts).config["places"])
    loader = CellLoader(Ledger(here.ledger), here.data, find_device(parsed.device))
    signature = loader.ledger.find_signature(parsed.signature)
    figures.draw_figure(parsed.figure, loader, signature, parsed)
    return 0
