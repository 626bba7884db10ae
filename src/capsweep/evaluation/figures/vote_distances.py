"""How far votes are from the class capsules they vote for, by routing iteration.

Figure 2 of "Matrix capsules with EM routing" (Hinton, Sabour, Frosst 2018): a panel for each
routing iteration t and class c is a histogram over the children i of the distance of vote V_ic,
coordinates added, to the mean mu_c after iteration t, weighted by the assignment R_ic that entered
it. The paper does not say whether distances are squared, nor whether children's activations count:
both are options here, and the caption
names them.

Shape letters: B images, M places, L children, J classes, T routing iterations.
"""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from capsweep.errors import NotApplicableError
from capsweep.evaluation.figures import Drawing, parse_places, whole_number
from capsweep.evaluation.picture_grid import save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

    from capsweep.evaluation.checkpoint import CellLoader
    from capsweep.evaluation.traces import Trace

LAYER = "classes"
NEEDED = {"coupling", "squared_distance", "activation", "child_activation"}
WEIGHTS = {"R": "assignment R", "Ra": "assignment R times the child's activation"}
DISTANCES = {"squared": "squared distance", "plain": "distance"}
FULL = float("inf")  # the range of all votes
COLOURS = ("tab:blue", "tab:orange", "tab:green")  # of the rows, as in the paper
HEIGHT = 20.0  # of the panels, as in the paper
TICKS = (0.02, 0.05)
INCHES = 1.7  # of a panel's side


@dataclass(frozen=True)
class Histograms:
    """Of one image. weight: in each bin [T, J, bins], and beyond the last one [T, J].

    edges: [bins + 1]; activation: of the class capsules after each iteration [T, J].
    """

    weight: np.ndarray
    beyond: np.ndarray
    edges: np.ndarray
    activation: np.ndarray


def add_options(command: ArgumentParser) -> None:
    """Add the options of the command."""
    add, which = command.add_argument, command.add_mutually_exclusive_group()
    text = "R (default): assignments; Ra: activated"
    add("--weights", choices=WEIGHTS, default="R", help=text)
    text = "squared (default) or plain"
    add("--distance", choices=DISTANCES, default="squared", help=text)
    text = "the first so many test images (3)"
    which.add_argument("--images", type=whole_number(1), default=3, help=text)
    which.add_argument("--examples", type=parse_places, help="these test images: 0,5,7")
    add("--bins", type=whole_number(1), default=12, help="of equal width (default 12)")
    text = "of distances (default 0.05); full: all, in a log scale"
    add("--range", type=parse_range, default=0.05, help=text)


def parse_range(text: str) -> float:
    """The end of a range: a number above 0, or `full`."""
    try:
        end = FULL if text == "full" else float(text)
    except ValueError:
        end = 0.0
    if not end > 0:
        raise ArgumentTypeError(f"must be full or a number above 0, got {text}")
    return end


def draw_cell(loader: "CellLoader", name: str, options: Namespace) -> Iterator[Drawing]:
    """A figure for each of some test images."""
    from capsweep.evaluation.traces import trace_images

    places = options.examples or list(range(options.images))
    cell = loader.load(name)
    cell.check_places(places)
    end = "full" if options.range == FULL else f"{options.range:g}"
    for place in places:
        batch = cell.test.evaluation_batch(slice(place, place + 1))
        label = int(batch.labels.flatten()[0])
        trace = trace_images(cell, batch.images_BCHW).get(LAYER)
        histograms = measure(trace, 0, options)
        title = f"cell {name}, test image {place} of class {label}"
        yield Drawing(
            stem=f"vote-distances-{options.weights}-{options.distance}-{options.bins}-{end}"
            f"-example{place}",
            arrays={**vars(histograms), "label": label},
            picture=draw(histograms, options, label, title),
            caption=describe_figure(histograms, options),
        )


def measure(trace: "Trace | None", image: int, options: Namespace) -> Histograms:
    """The histograms of one image of a traced batch, as the options of the command say.

    trace: per iteration, tensors coupling and squared_distance [B, M, L, J], activation [B, M, J]
    and child_activation [B, M, L]. Raises NotApplicableError for a routing without distances.
    """
    if not trace or any(NEEDED - iteration.keys() for iteration in trace):
        raise NotApplicableError(
            "its routing gives no distances of votes; vote distances need routing=em"
        )
    distance, weights, activation = [], [], []
    for iteration in trace:
        squared_XJ = _to_numpy(iteration["squared_distance"][image].flatten(0, 1))  # X = M L votes
        distance.append(squared_XJ if options.distance == "squared" else np.sqrt(squared_XJ))
        coupling_MLJ = iteration["coupling"][image]
        if options.weights == "Ra":
            coupling_MLJ = coupling_MLJ * iteration["child_activation"][image][..., None]
        weights.append(_to_numpy(coupling_MLJ.flatten(0, 1)))
        activation.append(_to_numpy(iteration["activation"][image].mean(dim=0)))
    distance_TXJ, weight_TXJ = np.stack(distance), np.stack(weights)
    end = (float(distance_TXJ.max()) or 1.0) if options.range == FULL else options.range
    edges = np.linspace(0, end, options.bins + 1)
    iterations, _, classes = distance_TXJ.shape
    weight = np.zeros((iterations, classes, options.bins))
    for t in range(iterations):
        for c in range(classes):
            inside = distance_TXJ[t, :, c]
            weight[t, c], _ = np.histogram(inside, edges, weights=weight_TXJ[t, :, c])
    beyond = weight_TXJ.sum(axis=1) - weight.sum(axis=2)
    return Histograms(weight, beyond, edges, np.stack(activation))


def _to_numpy(values: "Tensor") -> np.ndarray:
    return values.detach().cpu().double().numpy()


def draw(histograms: Histograms, options: Namespace, label: int, title: str) -> bytes:
    """A PNG: a row of panels for each routing iteration, a column for each class."""
    from matplotlib.figure import Figure

    iterations, classes, _ = histograms.weight.shape
    figure = Figure(figsize=(INCHES * classes + 1, INCHES * iterations + 1.4), layout="constrained")
    panels = figure.subplots(iterations, classes, squeeze=False)
    for t in range(iterations):
        for c in range(classes):
            _draw_panel(panels[t, c], histograms, options, t, c)
            label_c = f"class {c}{' (true)' if c == label else ''}\n" if t == 0 else ""
            panels[t, c].set_title(f"{label_c}a = {histograms.activation[t, c]:.2g}", fontsize=7)
        panels[t, 0].set_ylabel(f"iteration {t + 1}", fontsize=8)
    figure.suptitle(title, fontsize=9)
    figure.supxlabel(describe_figure(histograms, options), fontsize=6, wrap=True)
    return save_png(figure, dpi=150)


def _draw_panel(panel: "Axes", histograms: Histograms, options: Namespace, t: int, c: int) -> None:
    edges, weight = histograms.edges, histograms.weight[t, c]
    colour = COLOURS[t % len(COLOURS)]
    panel.bar(edges[:-1], weight, np.diff(edges), align="edge", color=colour, edgecolor="white")
    panel.set_xlim(0, edges[-1])
    panel.tick_params(labelsize=6, which="both")
    if options.range == FULL:
        panel.set_yscale("log", nonpositive="clip")
        if (filled := weight[weight > 0]).size:
            panel.set_ylim(filled.min() / 2, filled.max() * 2)
        return
    panel.set_ylim(0, HEIGHT)
    panel.set_yticks([0, HEIGHT / 2, HEIGHT])
    inside = [tick for tick in TICKS if tick <= edges[-1]]
    panel.set_xticks(inside or [edges[-1]])


def describe_figure(histograms: Histograms, options: Namespace) -> str:
    """The caption: every choice, and what the panels do not show."""
    text = (
        f"{DISTANCES[options.distance]} of votes (coordinates added) to the class capsule's mean "
        f"after the iteration, weighted by the {WEIGHTS[options.weights]} that entered it\n"
        f"{options.bins} bins on [0, {histograms.edges[-1]:.3g}]"
    )
    if options.range == FULL:
        shown = "all votes; log scale, its height free in each panel"
    else:
        beyond = histograms.beyond.sum() / (histograms.weight.sum() + histograms.beyond.sum())
        cut = int((histograms.weight > HEIGHT).sum())
        shown = (
            f"{100 * beyond:.1f} % of the weight is beyond; height 0..{HEIGHT:g}, higher bars: "
            f"{cut} of {histograms.weight.size}"
        )
    return f"{text}, {shown}; a: the class capsule's activation"
