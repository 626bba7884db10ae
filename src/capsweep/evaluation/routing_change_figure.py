"""Figure A.1 of "Dynamic Routing Between Capsules", drawn from changes."""

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
LOWEST, HIGHEST = 0.05, 0.95  # quantiles of the band


def draw(changes: Changes, routed: Routed, file: IO[bytes]) -> None:
    """Write a PNG: a curve for each routing layer, in a linear and in a log scale."""
    curves = [_curve(layer, change_BT) for layer, change_BT in changes.by_layer.items()]
    quantity = QUANTITIES[changes.of]
    panels = [Panel(quantity, curves), Panel(quantity, curves, "log")]
    title = f"cell {routed.trained.name}: change by routing iteration"
    curve_figure.draw(panels, "routing iteration", title, caption(changes, routed), file)


def caption(changes: Changes, routed: Routed) -> str:
    """Every choice."""
    if changes.of == LOGITS:
        what = (
            "change of iteration t: |u_hat . v|, what it adds to a logit, averaged over all pairs "
            "of a child and a parent; that of the last iteration, which nothing reads, included"
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


def _curve(layer: str, change_BT: np.ndarray) -> Curve:
    low, high = np.quantile(change_BT, (LOWEST, HIGHEST), axis=0)
    iterations = np.arange(1, change_BT.shape[1] + 1)
    return Curve(layer, iterations, change_BT.mean(axis=0), low, high)
