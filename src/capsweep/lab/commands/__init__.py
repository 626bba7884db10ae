"""The commands of the laboratory.

`capsweep` finds the commands by listing the modules of this folder. A module has a dictionary
`COMMANDS`: {name of the command: (help text in one line, options)}. To run the commands, a module
has a function `run_NAME(parsed)` for each command, or one function `run(parsed)` for all. `run`
reads the name of the command from `parsed.command`.

A package in this folder is a group of commands. Its `TEXT` is the help text of the group.
`capsweep --help` imports all these modules, so they import torch and numpy only inside functions.
"""

import argparse
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def make_list_type(
    what: str, read: Callable[[str], Any], is_right: Callable[[Any], bool]
) -> Callable[[str], list[Any]]:
    """Return an argparse type that reads a list such as `0.1,0.2` and removes repeated values.

    Args:
        what: Description of the allowed values, for the error message.
        read: Function that converts one item of the list to a value, or raises ValueError.
        is_right: Function that returns whether a value is allowed.
    """

    def parse_list(text: str) -> list[Any]:
        with suppress(ValueError):
            values = list(dict.fromkeys(map(read, text.split(","))))
            if all(map(is_right, values)):
                return values
        raise argparse.ArgumentTypeError(f"must be {what}, got {text}")

    return parse_list
