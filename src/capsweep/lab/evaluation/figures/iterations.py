"""What routing does in each iteration: the entropy of couplings and the change of logits.

`draw_couplings` shows how evenly children divide themselves among their parents. A child's choices
are all its parents, of all types at all positions above the child. With none-of-the-above, "no
parent" is one more choice. A child's couplings are its shares for these choices. Let p be the
shares divided by their sum. The entropy is

    H = - sum p ln p        in nats; from 0 (one choice has everything) to ln(number of choices)

The control is ln(number of choices). This is the entropy of equal couplings. Dynamic routing as in
the paper starts with equal couplings. Children at the border of a convolutional layer have fewer
parents, and so a lower control. The ratio H / ln(number of choices) can be compared between
children. Children with only one choice (H is always 0) and children without parents (no shares) are
left out.

With `routing.norm=types`, a child divides itself once per position, among the types. With
`routing.norm=positions`, a child divides itself once per type, among the positions. In both cases,
each distribution counts like a child.

`draw_routing_change` draws figure A.1 of "Dynamic Routing Between Capsules": the average change of
the routing logits b_ij of child i and parent j in each iteration. In iteration t, procedure 1 adds
the agreement d_ij(t) = u_hat_ij . v_j(t) to b_ij. So the change of iteration t is the mean of
|d_ij(t)| over i and j. The logits after the last iteration are not used, but the figure also shows
the change of the last iteration.

The paper's curve falls, almost in a straight line on a log scale. With the definition above the
curve rises: v turns towards the votes that agree, and becomes longer, so the agreement of v with
these votes grows. The length of v and the agreement converge to values above zero, so the logits
grow for ever. But the relative change falls:

    mean |d_ij(t)| / mean |d_ij(1) + ... + d_ij(t)|        means over i and j

The relative change is 1 in the first iteration. If all changes are equal, the relative change is
1 / t in iteration t. The paper does not say whether its curve is divided by anything.

EM routing has no logits that are summed over iterations. Each iteration computes new
log-probabilities. One part of a log-probability is equal for all parents of a child and cancels
out. With small variances, this part is the largest. So the figure shows the change of the
assignments R: the mean of |R_ij(t + 1) - R_ij(t)| for iteration t. The last iteration does not
change the assignments.

Shape letters: B images, D distributions, M parent positions, L children below a position, J parent
types or classes, T iterations.
"""

from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from capsweep.errors import NotApplicableError, UserError
from capsweep.lab.evaluation import TRACED_EXAMPLES, figures
from capsweep.lab.evaluation.checkpoint import TrainedCell
from capsweep.lab.evaluation.couplings import Children
from capsweep.lab.evaluation.figures import BAND, LEVELS, Drawing, Panel
from capsweep.lab.evaluation.figures.coupling_maps import CouplingMaps
from capsweep.lab.evaluation.traces import RoutedCell, Trace, find_routed

LOGITS, ASSIGNMENTS = "logits", "assignments"
WHAT_CHANGES = {
    ASSIGNMENTS: "|R after t - R before t| of the assignments R; the last iteration changes none",
    LOGITS: "|u_hat . v|, which iteration t adds to a logit; shown also for the last iteration, "
    "whose logits are not used. By this definition the change rises, while the paper's curve "
    "falls; the change divided by the mean absolute sum of all changes up to t falls, too",
}
SHARES = ".shares"  # added to the name of a layer in the file
TINY = 1e-300  # avoids 0 / 0


def draw_couplings(cell: TrainedCell, options: Namespace) -> Iterator[Drawing]:
    """Yield figures of the couplings: their entropy by iteration, their means, and their places.

    The figure of the entropy has two panels: in nats, and relative to equal couplings. A panel has
    a curve for each routed layer. A dotted line shows the value for equal couplings: their mean
    entropy in nats, or 1 for the relative entropy. These arrays are stored for each layer:

        LAYER.control    mean entropy of equal couplings, in nats
        LAYER.parents    smallest and largest number of choices of a child
        LAYER.nats.*     mean, standard deviation and quantiles of the entropy in nats
        LAYER.share.*    the same statistics of the entropy relative to equal couplings

    Raises:
        NotApplicableError: The network does not route, the routing has no couplings, or there is a
            layer in which no child has a choice.
        UserError: The network does not reproduce the stored predictions.
    """
    routed = _find_verified(cell, options)
    if options.image >= routed.examples:
        raise UserError(
            f"--image {options.image}: only images 0 to {routed.examples - 1} are traced"
        )
    maps = CouplingMaps(routed, options.image)
    arrays: dict[str, np.ndarray] = {"levels": np.array(LEVELS)}
    nats, shares, texts = [], [], []
    for layer, couplings in maps.layers.items():
        children = couplings.children
        arrays |= summarise_entropies(layer, children, couplings.find_entropies())
        control = float(arrays[f"{layer}.control"])
        nats.append(figures.make_curve(f"{layer}.nats", arrays, layer, control))
        shares.append(figures.make_curve(f"{layer}.share", arrays, layer, 1.0))
        few, many = arrays[f"{layer}.parents"]
        texts.append(f"In {layer}, a child has {_describe_choices(children, few, many)}.")
    caption = (
        "A child divides itself among its parents; its couplings are the shares. Left: the entropy "
        "of the shares, 0 if one parent gets everything. Dotted: the entropy of equal shares. "
        f"Right: the first divided by the second. {' '.join(texts)}\nMean over images and over "
        f"all children with a choice, active or not; band: {BAND} of them. Measured on the "
        f"{routed.describe_images()}."
    )
    relative = Panel("entropy / entropy of equal couplings", shares)
    panels, title = [Panel("entropy of couplings, nats", nats), relative], "how children divide"
    picture = figures.draw_panels(panels, f"cell {cell.name}: {title} themselves", caption)
    yield Drawing(_name_files("couplings", options), arrays, picture, caption)
    yield from maps.draw(_name_files("", options))


def summarise_entropies(
    layer: str, children: Children, nats_BDT: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the arrays that `draw_couplings` stores for a layer.

    The entropies are summarised over all images and distributions.
    """
    equal_D, iterations = np.log(children.choices), nats_BDT.shape[2]
    share_BDT = nats_BDT / equal_D[:, None]
    return {
        f"{layer}.control": np.array(equal_D.mean()),
        f"{layer}.parents": np.array([children.choices.min(), children.choices.max()]),
        **figures.summarise(f"{layer}.nats", nats_BDT.reshape(-1, iterations)),
        **figures.summarise(f"{layer}.share", share_BDT.reshape(-1, iterations)),
    }


def _describe_choices(children: Children, few: float, many: float) -> str:
    """Return the number of choices of a child, and how the child is divided among them."""
    number = f"{few:.0f}" if few == many else f"{few:.0f} to {many:.0f}"
    if not children.has_sum:
        return f"{number} parents, and its couplings were divided by their sum"
    per = {"types": " at each position", "positions": " for each type"}
    where = "" if children.fields is None else per.get(children.rule.norm, "")
    return f"{number} choices{where}"


def draw_routing_change(cell: TrainedCell, options: Namespace) -> Iterator[Drawing]:
    """Yield one figure of the change in each routing iteration, with a curve for each routed layer.

    The first panel has a linear scale, the second a log scale. For logits, a third panel shows the
    relative change (see `measure_shares`) on a log scale.

    Raises:
        NotApplicableError: The network does not route, or its trace has no change of logits or
            assignments (see `measure_trace`).
        UserError: The network does not reproduce the stored predictions.
    """
    routed = _find_verified(cell, options)
    quantity, changes = measure_changes(routed)
    caption = (
        f"change of iteration t, averaged over all pairs of a child and a parent: "
        f"{WHAT_CHANGES[quantity]}\nmean over images, band: {BAND} of them; "
        f"{routed.describe_images()}; trained weights only"
    )
    arrays = {"levels": np.array(LEVELS), "of": np.array(quantity)}
    lines, shares = [], []
    for layer, change_BT in changes.items():
        arrays |= figures.summarise(layer, change_BT)
        curves = shares if layer.endswith(SHARES) else lines
        curves.append(figures.make_curve(layer, arrays, layer.removesuffix(SHARES)))
    size = f"mean |change of {quantity}|"
    panels = [Panel(size, lines), Panel(size, lines, "log")]
    if shares:
        panels.append(Panel("share of all change so far", shares, "log"))
    picture = figures.draw_panels(panels, f"cell {cell.name}: change by routing iteration", caption)
    yield Drawing(_name_files("routing-change", options), arrays, picture, caption)


def measure_changes(routed: RoutedCell) -> tuple[str, dict[str, np.ndarray]]:
    """Compute how much each iteration changes, for all traced images.

    Returns:
        The quantity that changes, LOGITS or ASSIGNMENTS, and arrays by name. The array LAYER is the
        mean change of a layer in each image and iteration: [B, T] for logits, [B, T - 1] for
        assignments. For logits, the array LAYER.shares [B, T] is the relative change (see
        `measure_shares`).

    Raises:
        NotApplicableError: The routing keeps no traces, or its trace has no change of logits or
            assignments (see `measure_trace`).
    """
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    quantity = LOGITS
    for layer, trace in routed.trace_layers():
        quantity, change_BT = measure_trace(trace)  # all layers of a network have one routing
        parts[layer].append(change_BT.cpu().numpy())
        if quantity == LOGITS:
            parts[layer + SHARES].append(measure_shares(trace).cpu().numpy())
    return quantity, {name: np.concatenate(part) for name, part in parts.items()}


def measure_trace(trace: Trace) -> tuple[str, Tensor]:
    """Compute by how much each iteration of a trace changes the logits or the couplings.

    Args:
        trace: For each iteration, the tensor `agreement` or `coupling` [B, M, L, J].

    Returns:
        The quantity that changes, LOGITS or ASSIGNMENTS, and the mean change in each image and
        iteration: [B, T] for logits, [B, T - 1] for assignments.

    Raises:
        NotApplicableError: The trace has neither of the tensors, or has `coupling` for only one
            iteration.
    """
    if all("agreement" in iteration for iteration in trace):
        return LOGITS, _mean_sizes([iteration["agreement"] for iteration in trace])
    if not all("coupling" in iteration for iteration in trace):
        raise NotApplicableError("its routing traces neither agreement nor couplings")
    if len(trace) < 2:
        raise NotApplicableError(
            "its routing changes assignments from one iteration to the next, but has one "
            "iteration; if it has routing.num_iters, add --iterations 3"
        )
    couplings = [iteration["coupling"] for iteration in trace]
    return ASSIGNMENTS, _mean_sizes([after - before for before, after in pairwise(couplings)])


def measure_shares(trace: Trace) -> Tensor:
    """Compute the relative change of the logits in each image and iteration [B, T].

    The relative change is a ratio of means over links, which are pairs of a child and a parent:

        numerator      mean of |change in this iteration|
        denominator    mean of |sum of the changes up to and including this iteration|

    The ratio is 0 if the denominator is 0.
    """
    added = [iteration["agreement"] for iteration in trace]
    return _mean_sizes(added) / _mean_sizes(list(accumulate(added))).clamp_min(TINY)


def _mean_sizes(changes: Sequence[Tensor]) -> Tensor:
    means = [change.abs().mean(dim=(1, 2, 3), dtype=torch.float64) for change in changes]
    return torch.stack(means, dim=1)


def _find_verified(cell: TrainedCell, options: Namespace) -> RoutedCell:
    """Find the routed layers of a cell, and check that it reproduces its stored predictions."""
    routed = find_routed(cell, options.examples, options.iterations)
    cell.verify(routed.examples)
    return routed


def _name_files(figure: str, options: Namespace) -> str:
    """Return the stem of a figure's file names. It includes options that are not the defaults."""
    iterations = "" if options.iterations is None else f"-iterations{options.iterations}"
    changed = options.examples != TRACED_EXAMPLES
    return f"{figure}{iterations}" + (f"-first{options.examples}" if changed else "")
