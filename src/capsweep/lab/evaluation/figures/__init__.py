"""Figures of one finished cell: a module for each, and a command `capsweep eval NAME CELL`.

A new figure is a module with two functions and a line of FIGURES; its name goes to EVALUATION_KINDS
of the ledger as well. The functions are

    add_options(command)                        adds the options of its command, with defaults
    draw_cell(loader, name, options)            yields its drawings of a cell

The latter raises NotApplicableError for a cell that has no such figure, and UserError. A module is
imported when its command is typed.
"""

import argparse
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from capsweep.errors import NotApplicableError

if TYPE_CHECKING:
    import numpy as np

    from capsweep.lab.evaluation.checkpoint import CellLoader

FIGURES = {  # in the order in which a page shows them
    "reconstructions": "draw test examples and what the decoder makes of their class capsules",
    "perturbations": "draw what each dimension of the pose of a class capsule changes, by class",
    "segmentation": "draw the two digits that the decoder makes of images of overlapping ones",
    "vote-distances": "draw how far votes are from class capsules, by routing iteration",
    "routing-change": "draw how much each routing iteration changes logits (EM: assignments)",
    "couplings": "draw the entropy of couplings by layer and iteration, and of equal couplings",
    "training-loss": "draw the training loss of this cell and its like, by routing iterations",
}
TRACED_EXAMPLES = 1000


@dataclass(frozen=True)
class Drawing:
    """A picture and its numbers, to be written as evals/STEM.png and evals/STEM.npz.

    arrays: by name, without objects. picture: a PNG. caption: every choice, and what is not shown.
    """

    stem: str
    arrays: "Mapping[str, np.ndarray | int | float]"
    picture: bytes
    caption: str

    def make_files(self) -> dict[str, bytes]:
        """The contents by name; the caption stands with the numbers."""
        import numpy as np

        numbers = io.BytesIO()
        arrays: dict[str, Any] = {**self.arrays, "caption": np.array(self.caption)}
        np.savez_compressed(numbers, **arrays)
        return {f"{self.stem}.npz": numbers.getvalue(), f"{self.stem}.png": self.picture}


def load_figure(name: str) -> Any:
    """The module of a figure."""
    return import_module(f"{__name__}.{name.replace('-', '_')}")


def draw_figure(
    name: str, loader: "CellLoader", signature: str, options: argparse.Namespace | None = None
) -> list[str]:
    """Draw a figure of a finished cell into its evals/; where its files are.

    options: None: the defaults. Prints files and captions. Raises NotApplicableError for a cell
    that has no such figure (no decoder, no routing, ...), else UserError; both name the cell.
    """
    figure = load_figure(name)
    if options is None:
        command = argparse.ArgumentParser()
        figure.add_options(command)
        options = command.parse_args([])
    paths: list[str] = []
    try:
        for drawing in figure.draw_cell(loader, signature, options):
            for name, content in drawing.make_files().items():
                paths.append(loader.ledger.write_evaluation(signature, name, content))
            print(*paths[-2:], drawing.caption, sep="\n", flush=True)
    except NotApplicableError as error:
        raise NotApplicableError(f"{signature}: {error}") from error
    return paths


def add_trace_options(command: argparse.ArgumentParser) -> None:
    """Add the options of figures that are made from traces of the first test images."""
    command.add_argument(
        "--examples",
        type=whole_number(1),
        default=TRACED_EXAMPLES,
        help=f"the first so many test images ({TRACED_EXAMPLES})",
    )
    text = "of routing; default: as in training"
    command.add_argument("--iterations", type=whole_number(1), help=text)


def whole_number(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number from `least` on."""

    def parse_number(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number >= {least}, got {text}")
        return int(text)

    return parse_number


def parse_places(text: str) -> list[int]:
    """The type of an option of distinct places from 0 on: `0,5,7`, put in order."""
    if not all(word.strip().isdecimal() for word in text.split(",")):
        raise argparse.ArgumentTypeError(f"must be places such as 0,5,7, got {text}")
    return sorted({int(word) for word in text.split(",")})
