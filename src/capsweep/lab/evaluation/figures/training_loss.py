"""Training loss by number of routing iterations: figure A.2 of "Dynamic Routing Between Capsules".

A cell is compared with its peers: the finished cells of the ledger that differ from the cell only
in routing.num_iters and seed. No network is run: the losses are read from metrics.jsonl. Each loss
is the mean over an epoch, and is drawn at the last optimiser step of the epoch.

Shape letters: S seeds, E epochs.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from capsweep.config.cell import get, hash_science
from capsweep.errors import NotApplicableError, UserError
from capsweep.lab.evaluation.checkpoint import CellLoader
from capsweep.lab.evaluation.figures import BandedCurve, Drawing, Panel, draw_panels
from capsweep.ledger.ledger import READERS, Ledger
from capsweep.ledger.stored_files import read_if_sound
from capsweep.runtime.terminal import count_of
from capsweep.statistics.seeds import list_common_steps

LOSS = "train/loss"
CAPTION = (
    "all finished cells that differ only in routing.num_iters and seed; training loss, averaged "
    "over an epoch and drawn at the epoch's last step\n"
    "mean over seeds, band: lowest to highest seed, at the steps that all seeds have"
)


def draw_training_loss(loader: CellLoader, name: str, options: Namespace) -> Iterator[Drawing]:
    """Yield one figure with a curve for each number of iterations, on linear and log scales.

    For each number n of iterations (0: without routing), these arrays are stored:

        Tn.step     optimiser steps at the ends of the epochs that all seeds have [E]
        Tn.loss     training losses [S, E]
        Tn.seeds    seeds [S]
        Tn.cells    signatures of the cells [S]

    Raises:
        UserError: The cell is not finished, or its config.yaml is missing.
        NotApplicableError: The metrics of the cell have no training loss.
    """
    arrays: dict[str, np.ndarray] = {}
    lines = []
    for iterations, losses in read_loss(loader.ledger, name).items():
        step = np.array(list_common_steps(list(losses.values())))
        loss_SE = np.array([[loss[at] for at in step.tolist()] for loss in losses.values()])
        seeds, cells = map(np.array, zip(*losses, strict=True))
        curve = {"step": step, "loss": loss_SE, "seeds": seeds, "cells": cells}
        arrays |= {f"T{iterations}.{key}": array for key, array in curve.items()}
        routing = count_of(iterations, "iteration") if iterations else "no routing"
        label = f"{routing} ({count_of(len(losses), 'seed')})"
        ends = loss_SE.min(axis=0), loss_SE.max(axis=0)
        lines.append(BandedCurve(label, step, loss_SE.mean(axis=0), *ends))
    panels = [Panel("training loss", lines, scale, along="step") for scale in ("linear", "log")]
    title = f"training loss by routing iterations: cell {name} and its peers"
    yield Drawing("training-loss", arrays, draw_panels(panels, title, CAPTION), CAPTION)


def read_loss(ledger: Ledger, name: str) -> dict[int, dict[tuple[int, str], dict[int, float]]]:
    """Read the training losses of a finished cell and of its peers.

    Returns:
        Nested dictionaries: losses by number of routing iterations, then by (seed, signature), then
        by optimiser step. Numbers of iterations are in ascending order; 0 means without routing.

    Raises:
        UserError: The cell is not finished, or has no config.yaml; the error names the cell.
        NotApplicableError: The metrics of the cell have no training loss.
    """
    if ledger.read_result(name) is None:
        raise UserError(f"{name}: it is not finished; run the cell first")
    losses: dict[int, dict[tuple[int, str], dict[int, float]]] = {}
    for cell, (iterations, seed) in find_peers(ledger, name).items():
        read = partial(_read_curve, ledger, cell)
        loss = read() if cell == name else read_if_sound(read)
        if loss:
            losses.setdefault(iterations, {})[seed, cell] = loss
        elif cell == name:
            raise NotApplicableError(f"its metrics.jsonl has no {LOSS}")
    return losses


def find_peers(ledger: Ledger, name: str) -> dict[str, tuple[int, int]]:
    """Find all cells that differ from a cell only in the number of iterations and the seed.

    The cell itself is included, and so are unfinished cells. Cells are compared by signature. A
    signature ignores keys with neutral values, so the configuration of a peer may lack such a key.

    Returns:
        For each signature, the number of iterations (0 without routing) and the seed. The
        dictionary is sorted by number of iterations, then by seed.

    Raises:
        UserError: The cell has no config.yaml; the error names the cell.
    """
    base = ledger.read_science(name)
    if base is None:
        raise UserError(f"{name}: its config.yaml is missing; run the cell again")

    cells = ledger.list_signatures()
    with ThreadPoolExecutor(READERS) as pool:
        read = pool.map(lambda cell: read_if_sound(partial(ledger.read_science, cell)), cells)
        sciences = dict(zip(cells, read, strict=True))
    peers = {
        cell: (get(science, "routing.num_iters") or 0, science["seed"])
        for cell, science in sciences.items()
        if science and _sign_peer(science, base) == name
    }
    return dict(sorted(peers.items(), key=lambda peer: peer[1]))


def _sign_peer(science: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """Return the signature that a cell would have with the seed and iterations of `base`.

    If the cell or `base` has no number of iterations, only the seed of `base` is used.
    """
    peer, iterations = {**science, "seed": base["seed"]}, get(base, "routing.num_iters")
    if iterations and get(science, "routing.num_iters"):
        peer["routing"] = {**science["routing"], "num_iters": iterations}
    return hash_science(peer)


def _read_curve(ledger: Ledger, cell: str) -> dict[int, float]:
    """Return the training losses of a cell by step; empty if the cell is not finished."""
    if ledger.read_result(cell) is None:
        return {}
    return {row["step"]: row[LOSS] for row in ledger.read_rows(cell) if LOSS in row}
