"""The commands of the laboratory: each module here declares some, and is found by its file.

A module has `COMMANDS`, {name: (what it does in a line, its options)}, and `run_NAME(parsed)` for
each, or one `run(parsed)` for all, which reads `parsed.command`. A package is a group of commands:
`TEXT` says what they do. All are imported for `capsweep --help`, so they import torch and numpy
within their functions alone.
"""

from typing import Any

from capsweep.cli.program import Option


def option(name: str, text: str, **settings: Any) -> Option:
    """Return an option of a command, as argparse takes it."""
    return name, {"help": text, **settings}
