"""`capsweep eval vote-distances`: figure 2 of "Matrix capsules with EM routing" for one cell."""

import argparse
import inspect
import io

import numpy as np
import torch

from capsweep.config import compose, places
from capsweep.config.overrides import render
from capsweep.data.presented import Batch
from capsweep.errors import UserError
from capsweep.evaluation import vote_distance_figure, vote_distances
from capsweep.evaluation.trained import Loader, Trained, device_of
from capsweep.evaluation.vote_distances import LAYER, Asked, Histograms, Trace
from capsweep.ledger.ledger import Ledger

FULL = "full"


def main(parsed: argparse.Namespace) -> int:
    """Draw a figure for each of some test images into the cell's evals/, the numbers beside it.

    Raises UserError naming the option or the cell.
    """
    asked, device = _asked(parsed), device_of(parsed.device)
    images = _images(parsed)
    here = _places(parsed)
    ledger = Ledger(here.ledger)
    trained = Loader(ledger, here.data, device).load(ledger.find(parsed.signature))
    if images[-1] >= len(trained.test):
        raise UserError(
            f"--examples: {trained.name} has the test images 0..{len(trained.test) - 1}, got "
            f"{images[-1]}"
        )
    for image in images:
        batch = trained.test.evaluated(slice(image, image + 1))
        try:
            found = vote_distances.of_image(_trace(trained, batch), 0, asked)
        except UserError as error:
            raise UserError(f"{trained.name}: {error}") from error
        _write(ledger, trained.name, asked, image, int(batch.labels.flatten()[0]), found)
    return 0


def _asked(parsed: argparse.Namespace) -> Asked:
    try:
        end = None if parsed.range == FULL else float(parsed.range)
    except ValueError as error:
        raise UserError(f"--range must be {FULL} or a number, got {parsed.range}") from error
    asked = Asked(parsed.weights, parsed.distance, parsed.bins, end)
    asked.check()
    return asked


def _images(parsed: argparse.Namespace) -> list[int]:
    """Which test images, in order."""
    try:
        given = None if parsed.examples is None else [int(n) for n in parsed.examples.split(",")]
    except ValueError as error:
        raise UserError(
            f"--examples must be places such as 0,5,7, got {parsed.examples}"
        ) from error
    images = sorted(set(range(parsed.images) if given is None else given))
    if not images or images[0] < 0:
        raise UserError("--images must be >= 1, and --examples places from 0 on")
    return images


def _places(parsed: argparse.Namespace) -> places.Places:
    """As for every other door: options, else the environment, else conf/."""
    given = {"storage": parsed.storage, "data": parsed.data_dir, "ledger": parsed.ledger}
    texts = [render(f"places.{key}", value) for key, value in given.items() if value is not None]
    return places.resolve(compose.cell(texts).config["places"])


def _trace(trained: Trained, batch: Batch) -> Trace | None:
    """What the routing of the class capsules traced; None where it cannot be asked to."""
    if "with_trace" not in inspect.signature(trained.network.forward).parameters:
        return None
    with torch.no_grad():
        traces = trained(batch.images_BCHW, with_trace=True).traces
    return None if traces is None else traces.get(LAYER)


def _write(
    ledger: Ledger, name: str, asked: Asked, image: int, label: int, found: Histograms
) -> None:
    end = FULL if asked.end is None else f"{asked.end:g}"
    stem = f"vote-distances-{asked.weights}-{asked.distance}-{asked.bins}-{end}-example{image}"
    picture, numbers = io.BytesIO(), io.BytesIO()
    title = f"cell {name}, test image {image} of class {label}"
    vote_distance_figure.draw(found, asked, label, title, picture)
    np.savez_compressed(
        numbers,
        weight=found.weight,
        beyond=found.beyond,
        edges=found.edges,
        activation=found.activation,
        label=label,
    )
    for ending, content in (("npz", numbers), ("png", picture)):
        where = ledger.write_evaluation(name, f"{stem}.{ending}", content.getvalue())
        print(where, flush=True)
    print(vote_distance_figure.caption(found, asked), flush=True)
