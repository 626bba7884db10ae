"""Distances between votes and class capsules, by routing iteration.

This is figure 2 of "Matrix capsules with EM routing" (Hinton, Sabour, Frosst 2018). The panel of
routing iteration t and class c is a weighted histogram over the children i. The values in the
histogram are squared distances (summed over coordinates) between the vote V_ic and the mean mu_c
after iteration t. The weights are the assignments R_ic from which the iteration computed mu_c. The
paper does not say whether distances are squared, or whether the activations of children count. The
caption says what is drawn here.

Shape letters: B images, M parent positions, L children below a position, J classes, T routing
iterations, X = M L votes for a class.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from capsweep.errors import NotApplicableError, UserError
from capsweep.lab.evaluation.checkpoint import TrainedCell
from capsweep.lab.evaluation.figures import Drawing, finish_figure
from capsweep.lab.evaluation.traces import Trace, trace_images

LAYER = "classes"
NEEDED = ("coupling", "squared_distance", "activation")
RANGE, BINS = 0.05, 12  # the histograms of squared distances: upper end, number of bins
STEM = f"vote-distances-R-squared-{BINS}-{RANGE:g}"
COLOURS = ("tab:blue", "tab:orange", "tab:green")  # by row, as in the paper
HEIGHT = 20.0  # upper limit of the vertical axes, as in the paper
INCHES = 1.7  # width and height of a panel


def draw_vote_distances(cell: TrainedCell, options: Namespace) -> Iterator[Drawing]:
    """Yield a figure of vote distances for each test image whose index is in `options.examples`.

    Raises:
        UserError: There is no test image with such an index.
        NotApplicableError: The routing does not record distances of votes.
    """
    last, place = len(cell.test) - 1, max(options.examples)
    if place > last:
        raise UserError(f"--examples {place}: {cell.name} has the test images 0 to {last}")
    for place in options.examples:
        batch = cell.test.evaluation_batch(slice(place, place + 1))
        label = int(batch.labels.flatten()[0])
        arrays = count_distances(trace_images(cell, batch.images_BCHW).get(LAYER))
        title = f"cell {cell.name}, test image {place} of class {label}"
        caption = _describe_bars(arrays)
        picture = _draw_bars(arrays, label, title, caption)
        yield Drawing(f"{STEM}-example{place}", {**arrays, "label": label}, picture, caption)


def count_distances(trace: Trace | None) -> dict[str, np.ndarray]:
    """Compute the histograms of vote distances for the first image of a traced batch.

    The arrays of the result:

        weight       sum of the weights of the votes in each bin [T, J, BINS]
        beyond       sum of the weights of the votes beyond the last bin [T, J]
        edges        edges of the bins [BINS + 1]
        activation   activations of the class capsules after each iteration [T, J]

    Args:
        trace: For each iteration, the tensors `coupling` and `squared_distance` [B, M, L, J] and
            `activation` [B, M, J].

    Raises:
        NotApplicableError: The routing does not record distances of votes.
    """
    if not trace or any(name not in iteration for iteration in trace for name in NEEDED):
        raise NotApplicableError(
            "its routing computes no distances of votes; vote distances need routing=em"
        )
    weight_TXJ, distance_TXJ, activation_TMJ = (
        np.stack([each[name][0].flatten(0, -2).cpu().double().numpy() for each in trace])
        for name in NEEDED
    )
    edges = np.linspace(0, RANGE, BINS + 1)
    weight = np.zeros((len(trace), weight_TXJ.shape[2], BINS))
    for t, c in np.ndindex(weight.shape[:2]):
        weight[t, c], _ = np.histogram(distance_TXJ[t, :, c], edges, weights=weight_TXJ[t, :, c])
    beyond = weight_TXJ.sum(axis=1) - weight.sum(axis=2)
    activation = activation_TMJ.mean(axis=1)
    return {"weight": weight, "beyond": beyond, "edges": edges, "activation": activation}


def _draw_bars(arrays: Mapping[str, np.ndarray], label: int, title: str, caption: str) -> bytes:
    """Return a PNG of the histograms: a row for each iteration and a column for each class."""
    edges, weight = arrays["edges"], arrays["weight"]
    iterations, classes, _ = weight.shape
    figure = Figure(figsize=(INCHES * classes + 1, INCHES * iterations + 1.4), layout="constrained")
    panels: Any = figure.subplots(iterations, classes, squeeze=False)
    for t, c in np.ndindex(iterations, classes):
        panel, colour = panels[t, c], COLOURS[t % len(COLOURS)]
        bars = (edges[:-1], weight[t, c], np.diff(edges))
        panel.bar(*bars, align="edge", color=colour, edgecolor="white")
        panel.set(xlim=(0, RANGE), xticks=(0.02, 0.05))
        panel.set(ylim=(0, HEIGHT), yticks=(0, HEIGHT / 2, HEIGHT))
        panel.tick_params(labelsize=6, which="both")
        above = f"class {c}{' (true)' if c == label else ''}\n" if t == 0 else ""
        panel.set_title(f"{above}a = {arrays['activation'][t, c]:.2g}", fontsize=7)
        panels[t, 0].set_ylabel(f"iteration {t + 1}", fontsize=8)
    return finish_figure(figure, title, caption)


def _describe_bars(arrays: Mapping[str, np.ndarray]) -> str:
    """Return a caption that says how the figure was made and what the panels do not show."""
    weight, beyond = arrays["weight"], arrays["beyond"].sum()
    return (
        "squared distance of votes (coordinates added) to the class capsule's mean after the "
        f"iteration, weighted by the assignment R used in it\n{BINS} bins on [0, {RANGE:g}], "
        f"{100 * beyond / (weight.sum() + beyond):.1f} % of the weight is beyond; height "
        f"0..{HEIGHT:g}, higher bars: {(weight > HEIGHT).sum()} of {weight.size}; a: the class "
        "capsule's activation"
    )
