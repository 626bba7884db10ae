"""Carries out a target of make as the command of its name: `python -m capsweep.cli.make TARGET`.

Its words are those of make's command line, which MAKEFLAGS has exactly as they were typed; what
ARGS holds stands on this module's own command line.
"""

import os
import sys
from collections.abc import Sequence

from capsweep.config.words import select_words

COMMANDS = {"shards": ("data", "make"), "wandb-sync": ("wandb", "sync")}


def list_arguments(target: str, arguments: Sequence[str], flags: str) -> list[str]:
    """Return what stands after `capsweep` where this stands after make."""
    return [*COMMANDS.get(target, (target,)), *arguments, *select_words(flags)]


def run_target(target: str, *arguments: str) -> int:
    """Run the command of a target; returns its exit status."""
    flags = os.environ.pop("MAKEFLAGS", "")  # what this starts has no words of make
    from capsweep.cli.program import main

    return main(list_arguments(target, arguments, flags))


if __name__ == "__main__":
    sys.exit(run_target(*sys.argv[1:]))
