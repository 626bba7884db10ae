"""The commands of the laboratory: each module here declares some, and is found by its file.

A module has `COMMANDS`, {name: (what it does in a line, its options)}, and `run_NAME(parsed)` for
each, or one `run(parsed)` for all, which reads `parsed.command`. A package is a group of commands:
`TEXT` says what they do. All are imported for `capsweep --help`, so they import torch and numpy
within their functions alone.
"""

import argparse
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from capsweep.cli.program import Option


def option(name: str, text: str, **settings: Any) -> Option:
    """Return an option of a command, as argparse takes it."""
    return name, {"help": text, **settings}


def listed(
    what: str, read: Callable[[str], Any], is_right: Callable[[Any], bool]
) -> Callable[[str], list[Any]]:
    """Return the type of an option that is several distinct values, such as `0.1,0.2`.

    what: which values are right, for the message. read: gives the value of a word, or raises
    ValueError.
    """

    def parse_list(text: str) -> list[Any]:
        with suppress(ValueError):
            values = list(dict.fromkeys(map(read, text.split(","))))
            if all(map(is_right, values)):
                return values
        raise argparse.ArgumentTypeError(f"must be {what}, got {text}")

    return parse_list
