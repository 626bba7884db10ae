"""The options of figures that are made from traces of the first test images."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capsweep.evaluation.traced_batches import Asked

EXAMPLES = 1000


def add(command: argparse.ArgumentParser) -> None:
    """Add them."""
    command.add_argument(
        "--examples", type=int, default=EXAMPLES, help=f"the first so many test images ({EXAMPLES})"
    )
    command.add_argument("--iterations", type=int, help="of routing; default: as in training")


def asked(parsed: argparse.Namespace) -> "Asked":
    """What is asked for. Raises UserError naming the option."""
    from capsweep.evaluation.traced_batches import Asked

    how = Asked(parsed.examples, parsed.iterations)
    how.check()
    return how


def stem(name: str, how: "Asked") -> str:
    """The name of the files: options that are not the defaults are part of it."""
    iterations = "" if how.iterations is None else f"-iterations{how.iterations}"
    return f"{name}{iterations}" + (f"-first{how.examples}" if how.examples != EXAMPLES else "")
