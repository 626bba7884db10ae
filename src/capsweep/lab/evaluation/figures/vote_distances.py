"""How far votes are from the class capsules they vote for, by routing iteration.

Figure 2 of "Matrix capsules with EM routing" (Hinton, Sabour, Frosst 2018): a panel for each
routing iteration t and class c is a histogram over the children i of the squared distance of vote
V_ic, coordinates added, to the mean mu_c after iteration t, weighted by the assignment R_ic that
entered it. The paper does not say whether distances are squared, nor whether children's activations
count; the caption names what is drawn here.

Shape letters: B images, M places, L children, J classes, T routing iterations, X = M L votes.
"""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation.checkpoint import CellLoader
from capsweep.lab.evaluation.figures import Drawing
from capsweep.lab.evaluation.panels import finish_figure
from capsweep.lab.evaluation.traces import Trace, trace_images

LAYER = "classes"
NEEDED = {"coupling", "squared_distance", "activation"}
RANGE, BINS = 0.05, 12  # of squared distances
STEM = f"vote-distances-R-squared-{BINS}-{RANGE:g}"
COLOURS = ("tab:blue", "tab:orange", "tab:green")  # of the rows, as in the paper
HEIGHT = 20.0  # of the panels, as in the paper
INCHES = 1.7  # of a panel's side


@dataclass(frozen=True)
class Histograms:
    """Of one image. weight: in each bin [T, J, BINS], and beyond the last one [T, J].

    edges: [BINS + 1]; activation: of the class capsules after each iteration [T, J].
    """

    weight: np.ndarray
    beyond: np.ndarray
    edges: np.ndarray
    activation: np.ndarray


def draw_cell(loader: CellLoader, name: str, options: Namespace) -> Iterator[Drawing]:
    """A figure for each of some test images."""
    cell = loader.load(name)
    cell.check_places(options.examples)
    for place in options.examples:
        batch = cell.test.evaluation_batch(slice(place, place + 1))
        label = int(batch.labels.flatten()[0])
        histograms = measure(trace_images(cell, batch.images_BCHW).get(LAYER), 0)
        title = f"cell {name}, test image {place} of class {label}"
        yield Drawing(
            stem=f"{STEM}-example{place}",
            arrays={**vars(histograms), "label": label},
            picture=draw(histograms, label, title),
            caption=describe_figure(histograms),
        )


def measure(trace: Trace | None, image: int) -> Histograms:
    """The histograms of one image of a traced batch.

    trace: per iteration, tensors coupling and squared_distance [B, M, L, J] and activation
    [B, M, J]. Raises NotApplicableError for a routing without distances.
    """
    if not trace or any(NEEDED - iteration.keys() for iteration in trace):
        raise NotApplicableError(
            "its routing gives no distances of votes; vote distances need routing=em"
        )
    distance_TXJ, weight_TXJ = (
        np.stack([_to_numpy(iteration[key][image].flatten(0, 1)) for iteration in trace])
        for key in ("squared_distance", "coupling")
    )
    activation_TMJ = np.stack([_to_numpy(iteration["activation"][image]) for iteration in trace])
    edges = np.linspace(0, RANGE, BINS + 1)
    iterations, _, classes = distance_TXJ.shape
    weight = np.zeros((iterations, classes, BINS))
    for t, c in np.ndindex(iterations, classes):
        weight[t, c], _ = np.histogram(distance_TXJ[t, :, c], edges, weights=weight_TXJ[t, :, c])
    beyond = weight_TXJ.sum(axis=1) - weight.sum(axis=2)
    return Histograms(weight, beyond, edges, activation_TMJ.mean(axis=1))


def _to_numpy(values: Tensor) -> np.ndarray:
    return values.detach().cpu().double().numpy()


def draw(histograms: Histograms, label: int, title: str) -> bytes:
    """A PNG: a row of panels for each routing iteration, a column for each class."""
    iterations, classes, _ = histograms.weight.shape
    figure = Figure(figsize=(INCHES * classes + 1, INCHES * iterations + 1.4), layout="constrained")
    panels: Any = figure.subplots(iterations, classes, squeeze=False)
    for t, c in np.ndindex(iterations, classes):
        _draw_panel(panels[t, c], histograms, t, c)
        label_c = f"class {c}{' (true)' if c == label else ''}\n" if t == 0 else ""
        panels[t, c].set_title(f"{label_c}a = {histograms.activation[t, c]:.2g}", fontsize=7)
    for t in range(iterations):
        panels[t, 0].set_ylabel(f"iteration {t + 1}", fontsize=8)
    return finish_figure(figure, title, describe_figure(histograms))


def _draw_panel(panel: Axes, histograms: Histograms, t: int, c: int) -> None:
    edges, weight = histograms.edges, histograms.weight[t, c]
    colour = COLOURS[t % len(COLOURS)]
    panel.bar(edges[:-1], weight, np.diff(edges), align="edge", color=colour, edgecolor="white")
    panel.set(xlim=(0, RANGE), xticks=(0.02, 0.05))
    panel.set(ylim=(0, HEIGHT), yticks=(0, HEIGHT / 2, HEIGHT))
    panel.tick_params(labelsize=6, which="both")


def describe_figure(histograms: Histograms) -> str:
    """The caption: every choice, and what the panels do not show."""
    beyond = histograms.beyond.sum() / (histograms.weight.sum() + histograms.beyond.sum())
    cut = int((histograms.weight > HEIGHT).sum())
    return (
        "squared distance of votes (coordinates added) to the class capsule's mean after the "
        f"iteration, weighted by the assignment R that entered it\n{BINS} bins on [0, {RANGE:g}], "
        f"{100 * beyond:.1f} % of the weight is beyond; height 0..{HEIGHT:g}, higher bars: {cut} "
        f"of {histograms.weight.size}; a: the class capsule's activation"
    )
