"""What routing does by iteration: the entropy of couplings, and how much each iteration changes.

`draw_couplings`: how evenly children divide themselves. A child's couplings are shares among its
parents: of all types at all positions above it, and the share that no parent gets where there is
none-of-the-above. With p its shares over their sum,

    H = - sum p ln p        in nats; between 0, all to one parent, and ln(number of shares)

and ln(number of shares) is the uniform control: equal couplings, as before routing. Children at the
border of a convolutional layer have fewer parents, so a smaller control. The share of the control,
H / ln(number of shares), compares children of all kinds. Children with one parent alone have no
choice, those without any no shares: neither count. Where a routing divides children otherwise
(routing.norm), p is what it divides: a child has a distribution for each position, or type.

`draw_routing_change`: figure A.1 of "Dynamic Routing Between Capsules", the average change of each
routing logit b_ij by routing iteration. Procedure 1 adds the agreement u_hat_ij . v_j to b_ij in
every iteration, so the change of iteration t is the mean of |u_hat_ij . v_j| over children and
parents, v of iteration t; after the last one nothing reads the sum, which the figure shows all the
same.

The curve of the paper falls, almost straight in a log scale. So defined it rises: v turns towards
the votes that agree and grows, agreement with it, and both come to rest at what is not zero, by
which logits go on growing for ever. What falls is the share: the change of iteration t divided by
the mean size of all that iterations 1 .. t have added, 1 at first and 1 / t where changes are
equal. The paper does not say what it divides by, if it does.

EM routing has no logits that add up: log-probabilities are made anew in each iteration, and what is
common to all parents of a child, which is most of them where variances are small, cancels out. What
changes is its assignment R: the change of iteration t is the mean of |R_ij(t + 1) - R_ij(t)|. The
last iteration changes nothing.

Shape letters: B images, G distributions, M parent positions, L children below one, J parent types,
T iterations.
"""

from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation import TRACED_EXAMPLES, figures
from capsweep.lab.evaluation.checkpoint import CellLoader
from capsweep.lab.evaluation.couplings import Children, find_children
from capsweep.lab.evaluation.figures import BAND, LEVELS, Drawing, Panel
from capsweep.lab.evaluation.traces import RoutedCell, Trace, find_routed

LOGITS, ASSIGNMENTS = "logits", "assignments"
WHAT_CHANGES = {
    ASSIGNMENTS: "|R after it - R before it| of the assignments; the last iteration changes none",
    LOGITS: "|u_hat . v|, what it adds to a logit, also in the last iteration, which nothing "
    "reads. By that definition it rises, where the paper's curve falls; what falls is its share: "
    "divided by the mean size of all that iterations 1 .. t have added",
}
SHARES = ".shares"  # ends the name of a layer in the file
TINY = 1e-300


def draw_couplings(loader: CellLoader, name: str, options: Namespace) -> Iterator[Drawing]:
    """Yield one figure: a curve for each routing layer beside its control, in nats, and as a share.

    The file has LAYER.control (nats), .parents (fewest and most shares of a child), .nats.*,
    .share.*.
    """
    routed = _load_routed(loader, name, options)
    arrays: dict[str, np.ndarray] = {"levels": np.array(LEVELS)}
    nats, shares, texts = [], [], []
    for layer, (children, nats_BGT) in measure_entropies(routed).items():
        arrays |= summarise_entropies(layer, children, nats_BGT)
        control = float(arrays[f"{layer}.control"])
        nats.append(figures.make_curve(f"{layer}.nats", arrays, layer, control))
        shares.append(figures.make_curve(f"{layer}.share", arrays, layer, 1.0))
        rule = children.rule.norm if children.has_sum else "their sum over types"
        few, many = arrays[f"{layer}.parents"]
        texts.append(f"{layer}: {few:.0f} to {many:.0f} shares by place, divided by {rule}")
    caption = (
        "entropy of the couplings that an iteration's weighted sums are made with; dotted: equal "
        f"couplings, the mean of ln(shares of a child)\n{'; '.join(texts)}\n"
        f"mean over children with a choice, present or not, and images, band: {BAND} of them; "
        f"{routed.describe_images()}"
    )
    relative = Panel("entropy / that of equal couplings", shares)
    panels, title = [Panel("entropy of couplings, nats", nats), relative], "how children divide"
    picture = figures.draw_panels(panels, f"cell {name}: {title} themselves", caption)
    yield Drawing(_name_files("couplings", options), arrays, picture, caption)


def measure_entropies(routed: RoutedCell) -> dict[str, tuple[Children, np.ndarray]]:
    """Return by layer that routes its children, and the entropies of all images in nats [B, G, T],
    of distributions that have a choice.

    Raises NotApplicableError for a routing without couplings, and where no child has a choice.
    """
    children: dict[str, Children] = {}
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    for name, couplings in routed.trace_couplings():
        if name not in children:
            children[name] = find_children(routed.layers[name], couplings[0].shape[1:])
        if not children[name].has_choice.any():
            raise NotApplicableError(f"the children of {name} have one parent each")
        # As many numbers as children of all images: float32 halves them.
        nats = [children[name].measure(coupling_BMLJ)[0] for coupling_BMLJ in couplings]
        parts[name].append(np.stack(nats, axis=2, dtype=np.float32))
    return {name: (children[name], np.concatenate(parts[name])) for name in parts}


def summarise_entropies(
    layer: str, children: Children, nats_BGT: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the arrays of a layer: over children and images."""
    equal_G, iterations = np.log(children.choices), nats_BGT.shape[2]
    share_BGT = nats_BGT / equal_G[:, None]
    return {
        f"{layer}.control": np.array(equal_G.mean()),
        f"{layer}.parents": np.array([children.choices.min(), children.choices.max()]),
        **figures.summarise(f"{layer}.nats", nats_BGT.reshape(-1, iterations)),
        **figures.summarise(f"{layer}.share", share_BGT.reshape(-1, iterations)),
    }


def draw_routing_change(loader: CellLoader, name: str, options: Namespace) -> Iterator[Drawing]:
    """Yield one figure: a curve for each routing layer, in a linear and in a log scale; its share
    of all change so far, in a log scale alone.
    """
    routed = _load_routed(loader, name, options)
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
    picture = figures.draw_panels(panels, f"cell {name}: change by routing iteration", caption)
    yield Drawing(_name_files("routing-change", options), arrays, picture, caption)


def measure_changes(routed: RoutedCell) -> tuple[str, dict[str, np.ndarray]]:
    """Return what changes, logits or assignments, and by layer how much, of each image and
    iteration [B, T], or [B, T - 1] where the last iteration changes nothing; of logits also
    LAYER.shares, of all that was added to them so far.

    Raises NotApplicableError for a routing that changes nothing.
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
    """Return what changes, and how much on average in each image and iteration [B, T].

    trace: per iteration, tensors agreement or coupling [B, M, L, J]. Raises NotApplicableError for
    a routing that traces neither, and where assignments have nothing to change to.
    """
    if all("agreement" in iteration for iteration in trace):
        return LOGITS, _mean_sizes([iteration["agreement"] for iteration in trace])
    if not all("coupling" in iteration for iteration in trace):
        raise NotApplicableError("its routing traces neither agreement nor couplings")
    if len(trace) < 2:
        raise NotApplicableError(
            "its routing changes assignments from one iteration to the next, and has one "
            "iteration; where it has routing.num_iters, --iterations 3 traces three"
        )
    couplings = [iteration["coupling"] for iteration in trace]
    return ASSIGNMENTS, _mean_sizes([after - before for before, after in pairwise(couplings)])


def measure_shares(trace: Trace) -> Tensor:
    """Return what each iteration adds to logits, over all that was added by then [B, T]; 0 of
    nothing.
    """
    added = [iteration["agreement"] for iteration in trace]
    return _mean_sizes(added) / _mean_sizes(list(accumulate(added))).clamp_min(TINY)


def _mean_sizes(changes: Sequence[Tensor]) -> Tensor:
    means = [change.abs().mean(dim=(1, 2, 3), dtype=torch.float64) for change in changes]
    return torch.stack(means, dim=1)


def _load_routed(loader: CellLoader, name: str, options: Namespace) -> RoutedCell:
    """Return a verified cell of the ledger, to be traced as the options of a figure say."""
    routed = find_routed(loader.load(name), options.examples, options.iterations)
    routed.cell.verify(routed.examples)
    return routed


def _name_files(figure: str, options: Namespace) -> str:
    """Return the stem of a figure's files: options that are not the defaults are part of it."""
    iterations = "" if options.iterations is None else f"-iterations{options.iterations}"
    changed = options.examples != TRACED_EXAMPLES
    return f"{figure}{iterations}" + (f"-first{options.examples}" if changed else "")
