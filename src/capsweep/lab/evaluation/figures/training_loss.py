"""Training loss by number of routing iterations: figure A.2 of "Dynamic Routing Between Capsules".

A cell is compared with every finished cell of its ledger that differs from it in routing.num_iters
and in seed alone. Nothing is run: the losses are those of metrics.jsonl, each the mean of an epoch,
at the step where the epoch ends.

Shape letters: S seeds, E epochs.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from capsweep.config.cell import get, signature
from capsweep.errors import NotApplicableError, UserError
from capsweep.lab.evaluation.checkpoint import CellLoader
from capsweep.lab.evaluation.figures import BandedCurve, Drawing, Panel, draw_panels
from capsweep.ledger.ledger import READERS, Ledger
from capsweep.ledger.stored_files import read_if_sound
from capsweep.runtime.terminal import count_of
from capsweep.statistics.seeds import list_common_places

LOSS = "train/loss"
CAPTION = (
    "all finished cells that differ in routing.num_iters and seed alone; loss as each was trained "
    "with, averaged over an epoch, at its last step\n"
    "mean over seeds, band: lowest to highest seed, at the steps that all seeds have"
)


def draw_training_loss(loader: CellLoader, name: str, options: Namespace) -> Iterator[Drawing]:
    """Yield one figure: a curve for each number of iterations, in a linear and a log scale. No
    network is run.

    The file has for n iterations, 0 without routing, Tn.step [E], .loss [S, E], .seeds and .cells.
    """
    arrays: dict[str, np.ndarray] = {}
    lines = []
    for iterations, losses in measure(loader.ledger, name).items():
        step = np.array(list_common_places(list(losses.values())))
        loss_SE = np.array([[loss[at] for at in step.tolist()] for loss in losses.values()])
        seeds, cells = map(np.array, zip(*losses, strict=True))
        curve = {"step": step, "loss": loss_SE, "seeds": seeds, "cells": cells}
        arrays |= {f"T{iterations}.{key}": array for key, array in curve.items()}
        routing = count_of(iterations, "iteration") if iterations else "no routing"
        label = f"{routing} ({count_of(len(losses), 'seed')})"
        ends = loss_SE.min(axis=0), loss_SE.max(axis=0)
        lines.append(BandedCurve(label, step, loss_SE.mean(axis=0), *ends))
    panels = [Panel("training loss", lines, scale, along="step") for scale in ("linear", "log")]
    title = f"training loss by routing iterations: cell {name} and its like"
    yield Drawing("training-loss", arrays, draw_panels(panels, title, CAPTION), CAPTION)


def measure(ledger: Ledger, name: str) -> dict[int, dict[tuple[int, str], dict[int, float]]]:
    """Return the losses by step of a finished cell and of its peers, by (seed, signature) and by
    number of iterations, fewest first; of no routing 0.

    Raises UserError naming the cell.
    """
    if ledger.read_result(name) is None:
        raise UserError(f"{name}: it is not finished; run the cell first")
    losses: dict[int, dict[tuple[int, str], dict[int, float]]] = {}
    for cell, (iterations, seed) in find_peers(ledger, name).items():
        read = partial(_read_losses, ledger, cell)
        loss = read() if cell == name else read_if_sound(read)
        if loss:
            losses.setdefault(iterations, {})[seed, cell] = loss
        elif cell == name:
            raise NotApplicableError(f"its metrics.jsonl has no {LOSS}")
    return losses


def find_peers(ledger: Ledger, name: str) -> dict[str, tuple[int, int]]:
    """Return iterations and seed, by signature, of this cell and those that differ in these alone;
    in the order of iterations, then of seeds. Of no routing, iterations are 0.

    Cells are compared by signature, so that a key at its neutral value may be absent. Raises
    UserError naming a cell without settings.
    """
    own = ledger.read_science(name)
    if own is None:
        raise UserError(f"{name}: it has no config.yaml; run the cell again")

    cells = ledger.list_signatures()
    with ThreadPoolExecutor(READERS) as pool:
        read = pool.map(lambda cell: read_if_sound(partial(ledger.read_science, cell)), cells)
        sciences = dict(zip(cells, read, strict=True))
    peers = {
        cell: (get(science, "routing.num_iters") or 0, science["seed"])
        for cell, science in sciences.items()
        if science and _sign_alike(science, own) == name
    }
    return dict(sorted(peers.items(), key=lambda peer: peer[1]))


def _sign_alike(science: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """Return the signature with the seed and the iterations of `own`."""
    alike, iterations = {**science, "seed": own["seed"]}, get(own, "routing.num_iters")
    if iterations and get(science, "routing.num_iters"):
        alike["routing"] = {**science["routing"], "num_iters": iterations}
    return signature(alike)


def _read_losses(ledger: Ledger, cell: str) -> dict[int, float]:
    """Return the loss of a finished cell by step."""
    if ledger.read_result(cell) is None:
        return {}
    return {row["step"]: row[LOSS] for row in ledger.read_rows(cell) if LOSS in row}
