"""Training loss by number of routing iterations: figure A.2 of "Dynamic Routing Between Capsules".

A cell is compared with every finished cell of its ledger that differs from it in routing.num_iters
and in seed alone. Nothing is run: the losses are those of metrics.jsonl, each the mean of an epoch,
at the step where the epoch ends.

Shape letters: S seeds, E epochs.
"""

import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from capsweep.config.cell import signature
from capsweep.errors import DamageError, NotApplicableError, UserError
from capsweep.evaluation import curves
from capsweep.evaluation.curves import BandedCurve, Panel
from capsweep.evaluation.figures import Drawing
from capsweep.ledger.ledger import READERS, Ledger
from capsweep.statistics.seeds import list_common_places

if TYPE_CHECKING:
    from capsweep.evaluation.checkpoint import CellLoader

LOSS = "train/loss"


@dataclass(frozen=True)
class Peer:
    """The values in which a cell may differ from those that it is compared with.

    iterations: of routing; None: the network does not route.
    """

    iterations: int | None
    seed: int


@dataclass(frozen=True)
class LossCurve:
    """The losses of cells with as many iterations. cells: S signatures, by seed.

    step: [E], after each epoch that every seed has. loss_SE.
    """

    iterations: int | None
    seeds: tuple[int, ...]
    cells: tuple[str, ...]
    step: np.ndarray
    loss_SE: np.ndarray

    @property
    def label(self) -> str:
        """Its name in the figure."""
        if self.iterations is None:
            return "no routing"
        return f"{self.iterations} iteration{'s' * (self.iterations > 1)}"


@dataclass(frozen=True)
class TrainingLosses:
    """At least one curve, one for each number of iterations, fewest first. codes: versions of the
    code that made the cells. left_out: why some finished cells are in no curve.
    """

    curves: tuple[LossCurve, ...]
    codes: int
    left_out: tuple[str, ...]

    def collect_arrays(self) -> dict[str, np.ndarray]:
        """Of each curve Tn.step, .loss [S, E], .seeds and .cells; n is 0 without routing."""
        arrays: dict[str, np.ndarray] = {}
        for curve in self.curves:
            name = f"T{curve.iterations or 0}"
            arrays[f"{name}.step"], arrays[f"{name}.loss"] = curve.step, curve.loss_SE
            arrays[f"{name}.seeds"] = np.array(curve.seeds)
            arrays[f"{name}.cells"] = np.array(curve.cells)
        return arrays


def add_options(command: ArgumentParser) -> None:
    """The command has no options of its own."""


def draw_cell(loader: "CellLoader", name: str, options: Namespace) -> Iterator[Drawing]:
    """One figure. No network is run."""
    losses = measure(loader.ledger, name)
    if (note := explain_single(losses)) is not None:
        print(f"{name}: {note}", file=sys.stderr)
    picture, caption = draw(losses, name), describe_figure(losses)
    yield Drawing("training-loss", losses.collect_arrays(), picture, caption)


def measure(ledger: Ledger, name: str) -> TrainingLosses:
    """The losses of a finished cell and of its peers. Raises UserError naming the cell."""
    if ledger.read_result(name) is None:
        raise UserError(f"{name}: it is not finished; run the cell first")
    peers = find_peers(ledger, name)
    codes: dict[str, str | None] = {}
    losses: dict[str, dict[int, float]] = {}
    left_out: list[str] = []
    for cell in sorted(peers, key=lambda cell: peers[cell].seed):
        try:
            if (result := ledger.read_result(cell)) is not None:
                losses[cell] = _read_losses(ledger, cell)
                codes[cell] = result.get("code", {}).get("numerics")
        except DamageError as error:
            if cell == name:
                raise
            left_out.append(str(error))
    if not losses[name]:
        raise NotApplicableError(f"its metrics.jsonl has no {LOSS}")
    left_out += [f"{cell} has no {LOSS}" for cell in losses if not losses[cell]]
    used = [cell for cell in losses if losses[cell]]
    lines = []
    for iterations in sorted({peers[cell].iterations for cell in used}, key=lambda n: n or 0):
        cells = [cell for cell in used if peers[cell].iterations == iterations]
        line = _make_curve({cell: peers[cell] for cell in cells}, losses)
        if len(line.step):
            lines.append(line)
        else:
            left_out.append(f"{', '.join(cells)}: no epoch in common")
    if not lines:
        raise NotApplicableError("its seeds have no epoch in common")
    return TrainingLosses(tuple(lines), len({codes[cell] for cell in used}), tuple(left_out))


def find_peers(ledger: Ledger, name: str) -> dict[str, Peer]:
    """By signature, the cells that differ from one in iterations and seed alone, and this cell.

    Cells are compared by signature, so that a key at its neutral value may be absent. Raises
    UserError naming a cell without settings.
    """
    own = ledger.read_science(name)
    if own is None:
        raise UserError(f"{name}: it has no config.yaml; run the cell again")
    cells = ledger.list_signatures()
    with ThreadPoolExecutor(READERS) as pool:
        sciences = pool.map(partial(_read_science, ledger), cells)
    peers: dict[str, Peer] = {}
    for cell, science in zip(cells, sciences, strict=True):
        if science and signature(science) == cell and _sign_alike(science, own) == name:
            routing = science.get("routing")
            peers[cell] = Peer(routing["num_iters"] if routing else None, science["seed"])
    return peers


def _read_science(ledger: Ledger, cell: str) -> dict[str, Any] | None:
    """None where it is damaged: such a cell is no peer."""
    try:
        return ledger.read_science(cell)
    except DamageError:
        return None


def _sign_alike(science: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """The signature with the seed and the iterations of `own`."""
    alike, routing = {**science, "seed": own["seed"]}, science.get("routing")
    if isinstance(routing, Mapping) and own["routing"]:
        alike["routing"] = {**routing, "num_iters": own["routing"]["num_iters"]}
    return signature(alike)


def _read_losses(ledger: Ledger, cell: str) -> dict[int, float]:
    """The loss by step; what is no finite number is no point."""
    by_step = {row["step"]: row.get(LOSS) for row in ledger.read_rows(cell) if "step" in row}
    return {
        step: loss for step, loss in by_step.items() if loss is not None and math.isfinite(loss)
    }


def _make_curve(peers: Mapping[str, Peer], losses: Mapping[str, Mapping[int, float]]) -> LossCurve:
    by_seed = [losses[cell] for cell in peers]
    steps = list_common_places(by_seed)
    return LossCurve(
        iterations=next(iter(peers.values())).iterations,
        seeds=tuple(peer.seed for peer in peers.values()),
        cells=tuple(peers),
        step=np.array(steps, dtype=np.int64),
        loss_SE=np.array([[loss[step] for step in steps] for loss in by_seed], dtype=np.float64),
    )


def draw(losses: TrainingLosses, name: str) -> bytes:
    """A PNG: a curve for each number of routing iterations, in a linear and a log scale."""
    lines = []
    for curve in losses.curves:
        label = f"{curve.label} ({len(curve.seeds)} seed{'s' * (len(curve.seeds) > 1)})"
        loss = curve.loss_SE
        middle, low, high = loss.mean(axis=0), loss.min(axis=0), loss.max(axis=0)
        lines.append(BandedCurve(label, curve.step, middle, low, high))
    panels = [Panel("training loss", lines), Panel("training loss", lines, "log")]
    title = f"training loss by routing iterations: cell {name} and its like"
    return curves.draw_panels(panels, "step", title, describe_figure(losses))


def describe_figure(losses: TrainingLosses) -> str:
    """The caption: every choice, and what is not shown."""
    notes = [
        "all finished cells that differ in routing.num_iters and seed alone; loss as each was "
        "trained with, averaged over an epoch, at its last step",
        "mean over seeds, band: lowest to highest seed, at the steps that all seeds have",
    ]
    if losses.codes > 1:
        notes.append(f"the cells were made by {losses.codes} versions of the code")
    notes += [f"left out: {reason}" for reason in losses.left_out]
    return "\n".join(notes)


def explain_single(losses: TrainingLosses) -> str | None:
    """Why there is nothing to compare with; None where there is."""
    numbers = {curve.iterations for curve in losses.curves}
    if len(numbers) > 1:
        return None
    if numbers == {None}:
        return "its network does not route: there is one curve, and nothing to compare"
    return (
        f"its ledger has cells with routing.num_iters={numbers.pop()} alone; finish the same cell "
        "with others to compare them"
    )
