"""Figure 2 of "Matrix capsules with EM routing", drawn from histograms."""

from typing import IO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from capsweep.evaluation.vote_distances import DISTANCES, WEIGHTS, Asked, Histograms

COLOURS = ("tab:blue", "tab:orange", "tab:green")  # of the rows, as in the paper
HEIGHT = 20.0  # of the panels, as in the paper
TICKS = (0.02, 0.05)
INCHES = 1.7  # of a panel's side


def draw(histograms: Histograms, asked: Asked, label: int, title: str, file: IO[bytes]) -> None:
    """Write a PNG: a row of panels for each routing iteration, a column for each class."""
    iterations, classes, _ = histograms.weight.shape
    figure = Figure(figsize=(INCHES * classes + 1, INCHES * iterations + 1.4), layout="constrained")
    panels = figure.subplots(iterations, classes, squeeze=False)
    for t in range(iterations):
        for c in range(classes):
            _panel(panels[t, c], histograms, asked, t, c)
    for t in range(iterations):
        panels[t, 0].set_ylabel(f"iteration {t + 1}", fontsize=8)
        for c in range(classes):
            named = f"class {c}{' (true)' if c == label else ''}\n" if t == 0 else ""
            panels[t, c].set_title(f"{named}a = {histograms.activation[t, c]:.2g}", fontsize=7)
    figure.suptitle(title, fontsize=9)
    figure.supxlabel(caption(histograms, asked), fontsize=6, wrap=True)
    figure.savefig(file, format="png", dpi=150)


def caption(histograms: Histograms, asked: Asked) -> str:
    """Every choice, and what the panels do not show."""
    ends = histograms.edges[-1]
    told = (
        f"{DISTANCES[asked.distance]} of votes (coordinates added) to the class capsule's mean "
        f"after the iteration, weighted by the {WEIGHTS[asked.weights]} that entered it\n"
        f"{asked.bins} bins on [0, {ends:.3g}]"
    )
    if asked.end is None:
        return (
            f"{told}, all votes; log scale, its height free in each panel; "
            "a: the class capsule's activation"
        )
    beyond = histograms.beyond.sum() / (histograms.weight.sum() + histograms.beyond.sum())
    cut = int((histograms.weight > HEIGHT).sum())
    return (
        f"{told}, {100 * beyond:.1f} % of the weight is beyond; height 0..{HEIGHT:g}, higher bars: "
        f"{cut} of {histograms.weight.size}; a: the class capsule's activation"
    )


def _panel(panel: Axes, histograms: Histograms, asked: Asked, t: int, c: int) -> None:
    edges, weight = histograms.edges, histograms.weight[t, c]
    colour = COLOURS[t % len(COLOURS)]
    panel.bar(edges[:-1], weight, np.diff(edges), align="edge", color=colour, edgecolor="white")
    panel.set_xlim(0, edges[-1])
    panel.tick_params(labelsize=6, which="both")
    if asked.end is None:
        panel.set_yscale("log", nonpositive="clip")
        if (there := weight[weight > 0]).size:
            panel.set_ylim(there.min() / 2, there.max() * 2)
        return
    panel.set_ylim(0, HEIGHT)
    panel.set_yticks([0, HEIGHT / 2, HEIGHT])
    inside = [tick for tick in TICKS if tick <= edges[-1]]
    panel.set_xticks(inside or [edges[-1]])
