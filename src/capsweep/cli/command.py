"""How a command and its options are added to the parser of the program."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from capsweep.errors import UserError

Handler = Callable[[argparse.Namespace], int]  # carries out a command; its exit status
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class GoneOption(argparse.Action):
    """An option that is no more; metavar says what to use instead."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, nargs="?", help=argparse.SUPPRESS)

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        raise UserError(f"{option} is no more: {self.metavar}")


def add_command(commands: Commands, name: str, run: Handler, text: str) -> argparse.ArgumentParser:
    """Add a command that `run` carries out."""
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(handler=run)
    return command


def add_group(commands: Commands, name: str, text: str) -> Commands:
    """Add a command that has commands below it."""
    parser = commands.add_parser(name, help=text, description=text)
    return parser.add_subparsers(metavar="COMMAND", required=True)


def add_options(command: argparse.ArgumentParser, texts: Mapping[str, str]) -> None:
    """Add options with one value each; texts: the help of each, by its name."""
    for name, text in texts.items():
        command.add_argument(name, help=text)


def add_places(command: argparse.ArgumentParser) -> None:
    """Add the options that say where finished cells are."""
    texts = {"--storage": "where results are; default: outputs"}
    add_options(command, texts | {"--ledger": "a folder or URL; default: STORAGE/ledger"})


def add_json(command: argparse.ArgumentParser) -> None:
    """Add the option for output that programs read."""
    command.add_argument("--json", action="store_true", help="for programs")
