"""Figures of one finished cell: a module for each, as `commands.eval.figures` says."""

import argparse
import io
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from capsweep.errors import NotApplicableError

if TYPE_CHECKING:
    import numpy as np

    from capsweep.lab.evaluation.checkpoint import CellLoader

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
        """Return the contents by name; the caption stands with the numbers."""
        import numpy as np

        numbers = io.BytesIO()
        arrays: dict[str, Any] = {**self.arrays, "caption": np.array(self.caption)}
        np.savez_compressed(numbers, **arrays)
        return {f"{self.stem}.npz": numbers.getvalue(), f"{self.stem}.png": self.picture}


def draw_figure(
    name: str, loader: "CellLoader", signature: str, options: argparse.Namespace
) -> None:
    """Draw a figure of a finished cell into its evals/, and print its files and captions.

    Raises NotApplicableError for a cell that has no such figure (no decoder, no routing, ...), else
    UserError; both name the cell.
    """
    figure = import_module(f"{__name__}.{name.replace('-', '_')}")
    try:
        for drawing in figure.draw_cell(loader, signature, options):
            for file, content in drawing.make_files().items():
                print(loader.ledger.write_evaluation(signature, file, content))
            print(drawing.caption, flush=True)
    except NotApplicableError as error:
        raise NotApplicableError(f"{signature}: {error}") from error
