"""Training loss by number of routing iterations: figure A.2 of "Dynamic Routing Between Capsules".

A cell is compared with every finished cell of its ledger that differs from it in routing.num_iters
and in seed alone. Nothing is run: the losses are those of metrics.jsonl, each the mean of an epoch,
at the step where the epoch ends.

Shape letters: S seeds, E epochs.
"""

import math
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from capsweep.config import bounded_yaml
from capsweep.config.cell import signature
from capsweep.errors import ConfigError, DamageError, NotApplicableError, UserError
from capsweep.ledger.ledger import READERS, Ledger
from capsweep.statistics.seeds import list_common_places

LOSS = "train/loss"
# The lines of a config.yaml in which the cells of one curve differ from those of another.
VARIED = re.compile(rb"^(seed|  num_iters): .*$", re.MULTILINE)


@dataclass(frozen=True)
class Curve:
    """iterations: of routing; None: the network does not route. cells: S signatures, by seed.

    step: [E], after each epoch that every seed has. loss_SE. epochs: what each seed has.
    """

    iterations: int | None
    seeds: tuple[int, ...]
    cells: tuple[str, ...]
    step: np.ndarray
    loss_SE: np.ndarray
    epochs: tuple[int, ...]


@dataclass(frozen=True)
class Losses:
    """At least one curve, one for each number of iterations, fewest first. codes: versions of the
    code that made the cells. left_out: why some finished cells are in no curve.
    """

    curves: tuple[Curve, ...]
    codes: int
    left_out: tuple[str, ...]

    def arrays(self) -> dict[str, np.ndarray]:
        """Of each curve Tn.step, .loss [S, E], .seeds and .cells; n is 0 without routing."""
        found: dict[str, np.ndarray] = {}
        for curve in self.curves:
            name = f"T{curve.iterations or 0}"
            found[f"{name}.step"], found[f"{name}.loss"] = curve.step, curve.loss_SE
            found[f"{name}.seeds"] = np.array(curve.seeds)
            found[f"{name}.cells"] = np.array(curve.cells)
        return found


def measure(ledger: Ledger, name: str) -> Losses:
    """The losses of a finished cell and of its peers. Raises UserError naming the cell."""
    if ledger.read_result(name) is None:
        raise UserError(f"{name}: it is not finished; run the cell first")
    found = peers(ledger, name)
    results = {cell: ledger.read_result(cell) for cell in found}
    series, damaged = {}, []
    for cell in (cell for cell, known in results.items() if known is not None):
        try:
            series[cell] = _series(ledger, cell)
        except DamageError as error:
            if cell == name:
                raise
            damaged.append(str(error))
    by_iterations: dict[int | None, list[str]] = {}
    for cell in sorted(series, key=lambda cell: found[cell].seed):
        if series[cell]:
            by_iterations.setdefault(found[cell].iterations, []).append(cell)
    if not series.get(name):
        raise NotApplicableError(f"its metrics.jsonl has no {LOSS}")
    curves = [
        _curve(iterations, {cell: found[cell].seed for cell in cells}, series)
        for iterations, cells in sorted(by_iterations.items(), key=lambda item: item[0] or 0)
    ]
    kept = [cell for cells in by_iterations.values() for cell in cells]
    drawn = tuple(curve for curve in curves if len(curve.step))
    if not drawn:
        raise NotApplicableError("its seeds have no epoch in common")
    return Losses(
        curves=drawn,
        codes=len({_code(results[cell]) for cell in kept}),
        left_out=(
            *damaged,
            *(f"{cell} has no {LOSS}" for cell, rows in series.items() if not rows),
            *(f"{', '.join(c.cells)}: no epoch in common" for c in curves if not len(c.step)),
        ),
    )


@dataclass(frozen=True)
class Peer:
    """What is its own of a cell that is compared."""

    iterations: int | None
    seed: int


def peers(ledger: Ledger, name: str) -> dict[str, Peer]:
    """By signature, the cells that differ from one in iterations and seed alone, and this cell.

    Cells are compared by signature, so that a key at its neutral value may be absent. Raises
    UserError naming a cell without settings.
    """
    own = ledger.read_science(name)
    if own is None:
        raise UserError(f"{name}: it has no config.yaml; run the cell again")
    cells = ledger.list_signatures()
    with ThreadPoolExecutor(READERS) as pool:
        texts = pool.map(lambda cell: _settings(ledger, cell), cells)
    known: dict[bytes, bool] = {}  # by what a config.yaml says but for the varied lines
    found: dict[str, Peer] = {}
    for cell, text in zip(cells, texts, strict=True):
        template = VARIED.sub(b"", text or b"")
        if text is None or not known.get(template, True):
            continue
        science = _science(cell, text)
        if science is None:
            continue
        known[template] = _made_alike(science, own) == name
        if known[template]:
            found[cell] = _peer(science)
    return found


def _settings(ledger: Ledger, cell: str) -> bytes | None:
    try:
        return ledger.read(cell, "config.yaml")
    except DamageError:  # it is no peer of anybody's
        return None


def _science(cell: str, text: bytes) -> dict[str, Any] | None:
    """None where it cannot be read, or is not this cell's."""
    try:
        science = bounded_yaml.load_settings(text)
    except ConfigError:
        return None
    return science if signature(science) == cell else None


def _made_alike(science: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """The signature with the seed and the iterations of `own`."""
    alike, routing = {**science, "seed": own["seed"]}, science.get("routing")
    if isinstance(routing, Mapping) and own["routing"]:
        alike["routing"] = {**routing, "num_iters": own["routing"]["num_iters"]}
    return signature(alike)


def _peer(science: Mapping[str, Any]) -> Peer:
    routing = science.get("routing")
    return Peer(routing["num_iters"] if routing else None, science["seed"])


def _series(ledger: Ledger, cell: str) -> dict[int, float]:
    """The loss by step; what is no finite number is no point."""
    rows = ledger.read_rows(cell)
    found = {row["step"]: row.get(LOSS) for row in rows if "step" in row}
    return {step: loss for step, loss in found.items() if loss is not None and math.isfinite(loss)}


def _curve(
    iterations: int | None, seeds: Mapping[str, int], series: Mapping[str, Mapping[int, float]]
) -> Curve:
    losses = [series[cell] for cell in seeds]
    steps = list_common_places(losses)
    return Curve(
        iterations=iterations,
        seeds=tuple(seeds.values()),
        cells=tuple(seeds),
        step=np.array(steps, dtype=np.int64),
        loss_SE=np.array([[loss[step] for step in steps] for loss in losses], dtype=np.float64),
        epochs=tuple(len(loss) for loss in losses),
    )


def _code(result: Mapping[str, Any] | None) -> str | None:
    return (result or {}).get("code", {}).get("numerics")
