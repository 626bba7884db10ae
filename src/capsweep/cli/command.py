"""How a command of the program is added to its parser, wherever it is."""

import argparse
from collections.abc import Callable
from typing import TypeAlias

Door = Callable[[argparse.Namespace], int]  # what a command does; its exit status
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(commands: Commands, name: str, door: Door, text: str) -> argparse.ArgumentParser:
    """A command and what it does."""
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(door=door)
    return command


def add_group(commands: Commands, name: str, text: str) -> Commands:
    """A command that has commands below it."""
    parser = commands.add_parser(name, help=text, description=text)
    return parser.add_subparsers(metavar="COMMAND", required=True)


def add_places(command: argparse.ArgumentParser) -> None:
    """Add the options that say where finished cells are."""
    command.add_argument("--storage", help="where results are; default: outputs")
    command.add_argument("--ledger", help="a folder or URL; default: STORAGE/ledger")
