"""Figure A.1 of "Dynamic Routing Between Capsules", drawn from changes."""

from collections.abc import Mapping
from typing import IO

import numpy as np

from capsweep.evaluation import curve_figure
from capsweep.evaluation.curve_figure import Curve, Panel
from capsweep.evaluation.routing_change import LOGITS, Changes
from capsweep.evaluation.traced_batches import Routed

QUANTITIES = {
    "logits": "mean |change of a logit|",
    "assignments": "mean |change of an assignment|",
}
SHARE = "share of all change so far"
LOWEST, HIGHEST = 0.05, 0.95  # quantiles of the band


def draw(changes: Changes, routed: Routed, file: IO[bytes]) -> None:
    """Write a PNG: a curve for each routing layer, in a linear and in a log scale; its share of
    all change so far, in a log scale alone.
    """
    curves = _curves(changes.by_layer)
    quantity = QUANTITIES[changes.of]
    panels = [Panel(quantity, curves), Panel(quantity, curves, "log")]
    if changes.shares:
        panels.append(Panel(SHARE, _curves(changes.shares), "log"))
    title = f"cell {routed.trained.name}: change by routing iteration"
    curve_figure.draw(panels, "routing iteration", title, caption(changes, routed), file)


def caption(changes: Changes, routed: Routed) -> str:
    """Every choice."""
    if changes.of == LOGITS:
        what = (
            "change of iteration t: |u_hat . v|, what it adds to a logit, averaged over all pairs "
            "of a child and a parent; that of the last iteration, which nothing reads, included. "
            "By that definition it rises, where the paper's curve falls; what falls is its share: "
            "divided by the mean size of all that iterations 1 .. t have added"
        )
    else:
        what = (
            "change of iteration t: |R after it - R before it| of the assignments, averaged over "
            "all pairs of a child and a parent; the last iteration changes none"
        )
    return (
        f"{what}\nmean over images, band: {LOWEST:.0%} to {HIGHEST:.0%} of them; "
        f"{routed.told}; trained weights only"
    )


def _curves(changes: Mapping[str, np.ndarray]) -> list[Curve]:
    return [_curve(layer, change_BT) for layer, change_BT in changes.items()]


def _curve(layer: str, change_BT: np.ndarray) -> Curve:
    low, high = np.quantile(change_BT, (LOWEST, HIGHEST), axis=0)
    iterations = np.arange(1, change_BT.shape[1] + 1)
    return Curve(layer, iterations, change_BT.mean(axis=0), low, high)
