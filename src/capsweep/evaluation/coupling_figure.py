"""Entropy of couplings, drawn."""

from typing import IO

import numpy as np

from capsweep.evaluation import curve_figure
from capsweep.evaluation.couplings import Entropies, Layer
from capsweep.evaluation.curve_figure import Curve, Panel
from capsweep.evaluation.traced_batches import Routed
from capsweep.statistics.examples import Distribution

BAND = (0.05, 0.95)  # quantiles


def draw(entropies: Entropies, routed: Routed, file: IO[bytes]) -> None:
    """Write a PNG: a curve for each routing layer beside its control, in nats and as a share."""
    layers = entropies.by_layer
    nats = [_curve(name, one.nats, one.control) for name, one in layers.items()]
    share = [_curve(name, one.share, 1.0) for name, one in layers.items()]
    panels = [
        Panel("entropy of couplings, nats", nats),
        Panel("entropy / that of equal couplings", share),
    ]
    title = f"cell {routed.trained.name}: how evenly children divide themselves"
    curve_figure.draw(panels, "routing iteration", title, caption(entropies, routed), file)


def caption(entropies: Entropies, routed: Routed) -> str:
    """Every choice."""
    lowest, highest = BAND
    layers = "; ".join(f"{name}: {_told(one)}" for name, one in entropies.by_layer.items())
    return (
        "entropy of the couplings that an iteration's weighted sums are made with; dotted: equal "
        f"couplings, the mean of ln(shares of a child)\n{layers}\n"
        f"mean over children, present or not, and images, band: {lowest:.0%} to {highest:.0%} of "
        f"them; {routed.told}"
    )


def _told(layer: Layer) -> str:
    children = layer.children
    shares = children.shares[children.chosen]
    least, most = int(shares.min()), int(shares.max())
    told = f"{least} shares" if least == most else f"{least} to {most} shares by place"
    left_out = len(children.shares) - len(shares)
    told += ", none of the above counted" if children.division.none_of_the_above else ""
    told += f", divided by {children.division.norm}" if children.division.norm != "all" else ""
    return told + (f", {left_out} left out that have no choice" if left_out else "")


def _curve(label: str, iterations: list[Distribution], control: float) -> Curve:
    bands = np.stack([one.quantiles(BAND) for one in iterations])
    return Curve(
        label=label,
        x=np.arange(1, len(iterations) + 1),
        middle=np.array([one.mean for one in iterations]),
        low=bands[:, 0],
        high=bands[:, 1],
        control=control,
    )
