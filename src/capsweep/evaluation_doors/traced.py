"""Figures made from traces of the first test images: their options, and how they are drawn."""

import argparse
import io
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from capsweep.evaluation_doors.drawing import Draw, Drawing

if TYPE_CHECKING:
    from capsweep.evaluation.traced_batches import Asked, Routed
    from capsweep.evaluation.trained import Loader

EXAMPLES = 1000


def add(command: argparse.ArgumentParser) -> None:
    """Add them."""
    command.add_argument(
        "--examples", type=int, default=EXAMPLES, help=f"the first so many test images ({EXAMPLES})"
    )
    command.add_argument("--iterations", type=int, help="of routing; default: as in training")


def asked(
    parsed: argparse.Namespace,
    name: str,
    draw: "Callable[[Routed, io.BytesIO], tuple[Mapping[str, Any], str]]",
) -> Draw:
    """One figure of that name. draw: writes its picture; its numbers and caption.

    Raises UserError naming the option.
    """
    from capsweep.evaluation.traced_batches import Asked

    how = Asked(parsed.examples, parsed.iterations)
    how.check()

    def drawings(loader: "Loader", cell: str) -> Iterator[Drawing]:
        picture = io.BytesIO()
        arrays, caption = draw(routed(loader, cell, how), picture)
        yield Drawing(stem(name, how), arrays, picture.getvalue(), caption)

    return drawings


def routed(loader: "Loader", name: str, how: "Asked") -> "Routed":
    """The cell to be traced, once it says of these images what it said in its test.

    Raises NotApplicableError for a network that does not route, UserError naming the cell.
    """
    from capsweep.evaluation import stored, traced_batches
    from capsweep.ledger.predictions import load_predictions

    found = traced_batches.of(loader.load(name), how)
    stored.as_stored(found.trained, load_predictions(loader.ledger, name), found.examples)
    return found


def stem(name: str, how: "Asked") -> str:
    """The name of the files: options that are not the defaults are part of it."""
    iterations = "" if how.iterations is None else f"-iterations{how.iterations}"
    return f"{name}{iterations}" + (f"-first{how.examples}" if how.examples != EXAMPLES else "")
