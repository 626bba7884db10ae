"""`capsweep eval NAME CELL`: the figures of one trained cell, and how any program asks for them."""

import argparse
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

from capsweep.cli.command import Commands, add_command, add_places
from capsweep.errors import NotApplicableError
from capsweep.evaluation_doors import (
    couplings,
    perturbations,
    reconstructions,
    routing_change,
    segmentation,
    training_loss,
    vote_distances,
)
from capsweep.evaluation_doors.drawing import Draw, Drawing, Kind

if TYPE_CHECKING:
    from capsweep.config.places import Places
    from capsweep.evaluation.trained import Loader
    from capsweep.ledger.ledger import Ledger

FIGURES: Mapping[str, Kind] = {
    "reconstructions": reconstructions,
    "perturbations": perturbations,
    "segmentation": segmentation,
    "vote-distances": vote_distances,
    "routing-change": routing_change,
    "couplings": couplings,
    "training-loss": training_loss,
}


def add(commands: Commands) -> None:
    """Add a command for each figure."""
    for name, kind in FIGURES.items():
        command = add_command(commands, name, main, kind.TEXT)
        command.set_defaults(figure=name)
        command.add_argument("signature", help="a signature, or its first letters")
        kind.add(command)
        add_device(command)
        command.add_argument("--data-dir", help="where the data sets are")
        add_places(command)


def add_device(command: argparse.ArgumentParser) -> None:
    """Add `--device`."""
    command.add_argument("--device", default="auto", help="auto (default): a GPU if any; cpu, ...")


def main(parsed: argparse.Namespace) -> int:
    """Draw a figure of a cell into its evals/, the numbers beside it.

    Raises UserError naming the option or the cell.
    """
    from capsweep.evaluation.trained import Loader, device_of
    from capsweep.ledger.ledger import Ledger

    draw = FIGURES[parsed.figure].asked(parsed)
    device, here = device_of(parsed.device), _places(parsed)
    ledger = Ledger(here.ledger)
    loader = Loader(ledger, here.data, device)
    _drawn(draw, loader, ledger.find_signature(parsed.signature))
    return 0


def make(name: str, loader: "Loader", signature: str) -> list[str]:
    """Draw figure `name` of a finished cell as its defaults say; where its files are.

    Prints them and the captions. Raises NotApplicableError for a cell that has no such figure (no
    decoder, no routing, ...), else UserError; both name the cell.
    """
    alone = argparse.ArgumentParser()
    FIGURES[name].add(alone)
    return _drawn(FIGURES[name].asked(alone.parse_args([])), loader, signature)


def _drawn(draw: Draw, loader: "Loader", signature: str) -> list[str]:
    """Draw into evals/."""
    paths: list[str] = []
    try:
        for drawing in draw(loader, signature):
            paths += write(loader.ledger, signature, drawing)
    except NotApplicableError as error:
        raise NotApplicableError(f"{signature}: {error}") from error
    return paths


def write(ledger: "Ledger", signature: str, drawing: Drawing) -> list[str]:
    """Write a drawing into the evals/ of a cell: where its numbers and its picture are.

    Its caption stands with the numbers. Raises UserError for a cell that is not finished.
    """
    import numpy as np

    numbers = io.BytesIO()
    np.savez_compressed(numbers, **{**drawing.arrays, "caption": np.array(drawing.caption)})
    files = {f"{drawing.stem}.npz": numbers.getvalue(), f"{drawing.stem}.png": drawing.picture}
    paths = [ledger.write_evaluation(signature, name, files[name]) for name in files]
    print(*paths, drawing.caption, sep="\n", flush=True)
    return paths


def _places(parsed: argparse.Namespace) -> "Places":
    """As for every other door: options, else the environment, else conf/."""
    from capsweep.config import compose, places
    from capsweep.config.overrides import render

    given = {"storage": parsed.storage, "data": parsed.data_dir, "ledger": parsed.ledger}
    texts = [render(f"places.{key}", value) for key, value in given.items() if value is not None]
    return places.resolve(compose.cell(texts).config["places"])
