"""Training loss by number of routing iterations: figure A.2 of "Dynamic Routing Between Capsules".

A cell is compared with every finished cell of its ledger that differs from it in routing.num_iters
and in seed alone. Nothing is run: the losses are those of metrics.jsonl, each the mean of an epoch,
at the step where the epoch ends.

Shape letters: S seeds, E epochs.
"""

import math
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from capsweep.config.cell import signature
from capsweep.errors import DamageError, NotApplicableError, UserError
from capsweep.lab.evaluation.checkpoint import CellLoader
from capsweep.lab.evaluation.figures import Drawing
from capsweep.lab.evaluation.panels import BandedCurve, Panel, draw_panels
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import READERS, Ledger
from capsweep.statistics.seeds import list_common_places

LOSS = "train/loss"
CAPTION = (
    "all finished cells that differ in routing.num_iters and seed alone; loss as each was trained "
    "with, averaged over an epoch, at its last step\n"
    "mean over seeds, band: lowest to highest seed, at the steps that all seeds have"
)


@dataclass(frozen=True)
class LossCurve:
    """The losses of cells with as many iterations of routing; None: they do not route.

    cells: S signatures, by seed. step: [E], after each epoch that every seed has. loss_SE.
    """

    iterations: int | None
    cells: Mapping[int, str]
    step: np.ndarray
    loss_SE: np.ndarray

    def collect_arrays(self) -> dict[str, np.ndarray]:
        """Tn.step, .loss [S, E], .seeds and .cells; n is 0 without routing."""
        arrays = {
            "step": self.step,
            "loss": self.loss_SE,
            "seeds": np.array(list(self.cells)),
            "cells": np.array(list(self.cells.values())),
        }
        return {f"T{self.iterations or 0}.{key}": array for key, array in arrays.items()}

    def make_curve(self) -> BandedCurve:
        """Over seeds: the mean, from the lowest to the highest."""
        routing, seeds = "no routing", len(self.cells)
        if self.iterations is not None:
            routing = f"{self.iterations} iteration{'s' * (self.iterations > 1)}"
        label = f"{routing} ({seeds} seed{'s' * (seeds > 1)})"
        loss = self.loss_SE
        return BandedCurve(label, self.step, loss.mean(axis=0), loss.min(axis=0), loss.max(axis=0))


def draw_cell(loader: CellLoader, name: str, options: Namespace) -> Iterator[Drawing]:
    """One figure. No network is run."""
    arrays: dict[str, np.ndarray] = {}
    curves = measure(loader.ledger, name)
    for curve in curves:
        arrays |= curve.collect_arrays()
    yield Drawing("training-loss", arrays, draw(curves, name), CAPTION)


def measure(ledger: Ledger, name: str) -> list[LossCurve]:
    """The losses of a finished cell and of its peers: a curve for each number of iterations, fewest
    first. Raises UserError naming the cell.
    """
    if ledger.read_result(name) is None:
        raise UserError(f"{name}: it is not finished; run the cell first")
    groups: dict[int | None, dict[int, str]] = {}
    losses: dict[str, dict[int, float]] = {}
    for cell, (iterations, seed) in find_peers(ledger, name).items():
        try:
            loss = _read_losses(ledger, cell)
        except DamageError as error:
            if cell == name:
                raise
            stored_files.print_damage(error)
            continue
        if loss:
            losses[cell] = loss
            groups.setdefault(iterations, {})[seed] = cell
    if name not in losses:
        raise NotApplicableError(f"its metrics.jsonl has no {LOSS}")
    curves = [_join_seeds(iterations, cells, losses) for iterations, cells in groups.items()]
    curves = [curve for curve in curves if len(curve.step)]
    if not curves:
        raise NotApplicableError("its seeds have no epoch in common")
    return curves


def find_peers(ledger: Ledger, name: str) -> dict[str, tuple[int | None, int]]:
    """Iterations and seed, by signature, of this cell and those that differ in these alone; in the
    order of iterations, then of seeds.

    Cells are compared by signature, so that a key at its neutral value may be absent. Raises
    UserError naming a cell without settings.
    """
    own = ledger.read_science(name)
    if own is None:
        raise UserError(f"{name}: it has no config.yaml; run the cell again")
    cells = ledger.list_signatures()
    with ThreadPoolExecutor(READERS) as pool:
        sciences = pool.map(partial(_read_science, ledger), cells)
    peers: dict[str, tuple[int | None, int]] = {}
    for cell, science in zip(cells, sciences, strict=True):
        if science and signature(science) == cell and _sign_alike(science, own) == name:
            routing = science.get("routing")
            peers[cell] = ((routing or {}).get("num_iters"), science["seed"])
    return dict(sorted(peers.items(), key=lambda peer: (peer[1][0] or 0, peer[1][1])))


def _read_science(ledger: Ledger, cell: str) -> dict[str, Any] | None:
    """None where it is damaged: such a cell is no peer."""
    with suppress(DamageError):
        return ledger.read_science(cell)
    return None


def _sign_alike(science: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """The signature with the seed and the iterations of `own`."""
    alike, routing = {**science, "seed": own["seed"]}, science.get("routing")
    iterations = (own["routing"] or {}).get("num_iters")
    if iterations and isinstance(routing, Mapping) and "num_iters" in routing:
        alike["routing"] = {**routing, "num_iters": iterations}
    return signature(alike)


def _read_losses(ledger: Ledger, cell: str) -> dict[int, float]:
    """The loss of a finished cell by step; what is no finite number is no point."""
    if ledger.read_result(cell) is None:
        return {}
    losses = {row["step"]: row.get(LOSS, math.nan) for row in ledger.read_rows(cell)}
    return {step: loss for step, loss in losses.items() if math.isfinite(loss)}


def _join_seeds(
    iterations: int | None, cells: Mapping[int, str], losses: Mapping[str, Mapping[int, float]]
) -> LossCurve:
    by_seed = [losses[cell] for cell in cells.values()]
    steps = list_common_places(by_seed)
    loss_SE = np.array([[loss[step] for step in steps] for loss in by_seed], dtype=np.float64)
    return LossCurve(iterations, cells, np.array(steps, dtype=np.int64), loss_SE)


def draw(curves: Sequence[LossCurve], name: str) -> bytes:
    """A PNG: a curve for each number of routing iterations, in a linear and a log scale."""
    lines = [curve.make_curve() for curve in curves]
    panels = [Panel("training loss", lines), Panel("training loss", lines, "log")]
    title = f"training loss by routing iterations: cell {name} and its like"
    return draw_panels(panels, "step", title, CAPTION)
