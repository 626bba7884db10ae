"""How much each routing iteration changes: figure A.1 of "Dynamic Routing Between Capsules".

The figure is the average change of each routing logit b_ij by routing iteration. Procedure 1 adds
the agreement u_hat_ij . v_j to b_ij in every iteration, so the change of iteration t is the mean of
|u_hat_ij . v_j| over children and parents, v of iteration t; after the last one nothing reads the
sum, which the figure shows all the same.

The curve of the paper falls, almost straight in a log scale. So defined it rises: v turns towards
the votes that agree and grows, agreement with it, and both come to rest at what is not zero, by
which logits go on growing for ever. What falls is the share: the change of iteration t divided by
the mean size of all that iterations 1 .. t have added, 1 at first and 1 / t where changes are
equal. The paper does not say what it divides by, if it does.

EM routing has no logits that add up: log-probabilities are made anew in each iteration, and what is
common to all parents of a child, which is most of them where variances are small, cancels out. What
changes is its assignment R: the change of iteration t is the mean of |R_ij(t + 1) - R_ij(t)|. The
last iteration changes nothing.

Shape letters: B images, M parent positions, L children below one, J parent types, T iterations.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from capsweep.errors import NotApplicableError
from capsweep.evaluation import curves
from capsweep.evaluation.curves import BandedCurve, Panel
from capsweep.evaluation.figures import Drawing, add_trace_options

if TYPE_CHECKING:
    from torch import Tensor

    from capsweep.evaluation.checkpoint import CellLoader
    from capsweep.evaluation.traces import RoutedCell, Trace

LOGITS, ASSIGNMENTS = "logits", "assignments"
QUANTITIES = {
    LOGITS: "mean |change of a logit|",
    ASSIGNMENTS: "mean |change of an assignment|",
}
TINY = 1e-300
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the quantiles over images
BAND = (0.05, 0.95)  # of them, in the figure


@dataclass(frozen=True)
class Changes:
    """quantity: logits or assignments. by_layer: of each image and iteration [images, T], or
    [images, T - 1] where the last iteration changes nothing. shares: where it is of logits, of all
    that was added to them so far [images, T].
    """

    quantity: str
    by_layer: Mapping[str, np.ndarray]
    shares: Mapping[str, np.ndarray] = field(default_factory=dict)

    def collect_arrays(self) -> dict[str, np.ndarray]:
        """LAYER.mean, LAYER.std [T] and LAYER.quantiles [5, T] over images, and the levels;
        LAYER.shares.mean and so on of shares.
        """
        arrays: dict[str, np.ndarray] = {"levels": np.array(LEVELS), "of": np.array(self.quantity)}
        shares = {f"{layer}.shares": share for layer, share in self.shares.items()}
        for name, change_BT in {**self.by_layer, **shares}.items():
            arrays[f"{name}.mean"] = change_BT.mean(axis=0)
            arrays[f"{name}.std"] = change_BT.std(axis=0)
            arrays[f"{name}.quantiles"] = np.quantile(change_BT, LEVELS, axis=0)
        return arrays


add_options = add_trace_options


def draw_cell(loader: "CellLoader", name: str, options: Namespace) -> Iterator[Drawing]:
    """One figure."""
    from capsweep.evaluation import traces

    routed = traces.load_routed(loader, name, options)
    changes = measure(routed)
    yield Drawing(
        stem=traces.name_files("routing-change", options),
        arrays=changes.collect_arrays(),
        picture=draw(changes, routed),
        caption=describe_figure(changes, routed),
    )


def measure(routed: "RoutedCell") -> Changes:
    """The changes of every image. Raises NotApplicableError for routing that changes nothing."""
    parts: dict[str, list[np.ndarray]] = {}
    shares: dict[str, list[np.ndarray]] = {}
    quantity = LOGITS
    for by_layer in routed.trace_batches():
        for layer, trace in by_layer.items():
            quantity, change_BT = measure_trace(trace)  # all layers of a network have one routing
            parts.setdefault(layer, []).append(change_BT.cpu().numpy())
            if quantity == LOGITS:
                shares.setdefault(layer, []).append(measure_shares(trace).cpu().numpy())
    by_layer, shares_by_layer = (
        {layer: np.concatenate(some) for layer, some in values.items()}
        for values in (parts, shares)
    )
    return Changes(quantity, by_layer, shares_by_layer)


def measure_trace(trace: "Trace") -> tuple[str, "Tensor"]:
    """What changes, and how much on average in each image and iteration [B, T].

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
            "iteration; --iterations 3 traces three"
        )
    couplings = [iteration["coupling"] for iteration in trace]
    return ASSIGNMENTS, _mean_sizes([after - before for before, after in pairwise(couplings)])


def measure_shares(trace: "Trace") -> "Tensor":
    """What each iteration adds to logits, over all that was added by then [B, T]; 0 of nothing."""
    added = [iteration["agreement"] for iteration in trace]
    return _mean_sizes(added) / _mean_sizes(list(accumulate(added))).clamp_min(TINY)


def _mean_sizes(changes: "list[Tensor]") -> "Tensor":
    import torch

    means = [change.abs().mean(dim=(1, 2, 3), dtype=torch.float64) for change in changes]
    return torch.stack(means, dim=1)


def draw(changes: Changes, routed: "RoutedCell") -> bytes:
    """A PNG: a curve for each routing layer, in a linear and in a log scale; its share of all
    change so far, in a log scale alone.
    """
    lines = _make_curves(changes.by_layer)
    quantity = QUANTITIES[changes.quantity]
    panels = [Panel(quantity, lines), Panel(quantity, lines, "log")]
    if changes.shares:
        panels.append(Panel("share of all change so far", _make_curves(changes.shares), "log"))
    title = f"cell {routed.cell.name}: change by routing iteration"
    caption = describe_figure(changes, routed)
    return curves.draw_panels(panels, "routing iteration", title, caption)


def describe_figure(changes: Changes, routed: "RoutedCell") -> str:
    """The caption: every choice."""
    what = "|R after it - R before it| of the assignments; the last iteration changes none"
    if changes.quantity == LOGITS:
        what = (
            "|u_hat . v|, what it adds to a logit, also in the last iteration, which nothing "
            "reads. By that definition it rises, where the paper's curve falls; what falls is its "
            "share: divided by the mean size of all that iterations 1 .. t have added"
        )
    return (
        f"change of iteration t, averaged over all pairs of a child and a parent: {what}\n"
        f"mean over images, band: {BAND[0]:.0%} to {BAND[1]:.0%} of them; "
        f"{routed.describe_images()}; trained weights only"
    )


def _make_curves(by_layer: Mapping[str, np.ndarray]) -> list[BandedCurve]:
    lines = []
    for layer, change_BT in by_layer.items():
        low, high = np.quantile(change_BT, BAND, axis=0)
        iterations = np.arange(1, change_BT.shape[1] + 1)
        lines.append(BandedCurve(layer, iterations, change_BT.mean(axis=0), low, high))
    return lines
