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

What follows for the answers is beside it, of a routing with iterations: the weights as trained,
routed with 1, 2, 3, 5 and 10 iterations, the share of images whose class changes and the error.

Shape letters: B images, M parent positions, L children below one, J parent types, T iterations.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation import routing_measures, traces
from capsweep.lab.evaluation.checkpoint import CellLoader
from capsweep.lab.evaluation.figures import Drawing
from capsweep.lab.evaluation.panels import BAND, LEVELS, BandedCurve, Panel, Spread, draw_panels
from capsweep.lab.evaluation.routing_measures import RoutedAnew
from capsweep.lab.evaluation.traces import RoutedCell, Trace

LOGITS, ASSIGNMENTS = "logits", "assignments"
SHARES = ".shares"  # ends the name of a layer in the file
TINY = 1e-300
ANSWERS = (
    "right: the same weights routed with other numbers of iterations: the share of these images "
    "whose class is another than with that of training, and the error"
)


@dataclass(frozen=True)
class Changes:
    """quantity: logits or assignments. by_layer: of each image and iteration [images, T], or
    [images, T - 1] where the last iteration changes nothing; of logits also LAYER.shares, of all
    that was added to them so far.
    """

    quantity: str
    by_layer: dict[str, np.ndarray]

    def summarise_layers(self) -> dict[str, Spread]:
        """Over images."""
        return {name: Spread.of(change_BT) for name, change_BT in self.by_layer.items()}


def draw_cell(loader: CellLoader, name: str, options: Namespace) -> Iterator[Drawing]:
    """One figure."""
    routed = traces.load_routed(loader, name, options)
    changes = measure(routed)
    answers = routing_measures.vary_iterations(routed) or ()
    caption = describe_figure(changes, routed)
    arrays = {"levels": np.array(LEVELS), "of": np.array(changes.quantity)}
    for layer, spread in changes.summarise_layers().items():
        arrays |= spread.collect_arrays(layer)
    if answers:
        caption += f"\n{ANSWERS}"
        arrays |= collect_answers(answers)
    title = f"cell {name}: change by routing iteration"
    picture = draw(changes, title, caption, answers)
    yield Drawing(traces.name_files("routing-change", options), arrays, picture, caption)


def measure(routed: RoutedCell) -> Changes:
    """The changes of every image. Raises NotApplicableError for routing that changes nothing."""
    parts: dict[str, list[np.ndarray]] = {}
    quantity = LOGITS
    for by_layer in routed.trace_batches():
        for layer, trace in by_layer.items():
            quantity, change_BT = measure_trace(trace)  # all layers of a network have one routing
            parts.setdefault(layer, []).append(change_BT.cpu().numpy())
            if quantity == LOGITS:
                shares = parts.setdefault(layer + SHARES, [])
                shares.append(measure_shares(trace).cpu().numpy())
    return Changes(quantity, {name: np.concatenate(part) for name, part in parts.items()})


def measure_trace(trace: Trace) -> tuple[str, Tensor]:
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
            "iteration; where it has routing.num_iters, --iterations 3 traces three"
        )
    couplings = [iteration["coupling"] for iteration in trace]
    return ASSIGNMENTS, _mean_sizes([after - before for before, after in pairwise(couplings)])


def measure_shares(trace: Trace) -> Tensor:
    """What each iteration adds to logits, over all that was added by then [B, T]; 0 of nothing."""
    added = [iteration["agreement"] for iteration in trace]
    return _mean_sizes(added) / _mean_sizes(list(accumulate(added))).clamp_min(TINY)


def _mean_sizes(changes: list[Tensor]) -> Tensor:
    means = [change.abs().mean(dim=(1, 2, 3), dtype=torch.float64) for change in changes]
    return torch.stack(means, dim=1)


def collect_answers(answers: Sequence[RoutedAnew]) -> dict[str, np.ndarray]:
    """answers.iterations, .changed and .error; NaN where scores were not finite."""
    return {
        "answers.iterations": np.array([each.iterations for each in answers]),
        "answers.changed": np.array([each.changed for each in answers], dtype=float),
        "answers.error": np.array([each.error for each in answers], dtype=float),
    }


def draw(changes: Changes, title: str, caption: str, answers: Sequence[RoutedAnew] = ()) -> bytes:
    """A PNG: a curve for each routing layer, in a linear and in a log scale; its share of all
    change so far, in a log scale alone; classes and errors by number of iterations.
    """
    lines, shares = [], []
    for name, spread in changes.summarise_layers().items():
        (shares if name.endswith(SHARES) else lines).append(
            spread.make_curve(name.removesuffix(SHARES))
        )
    quantity = f"mean |change of {changes.quantity}|"
    panels = [Panel(quantity, lines), Panel(quantity, lines, "log")]
    if shares:
        panels.append(Panel("share of all change so far", shares, "log"))
    if answers:
        panels.append(_make_answer_panel(answers))
    return draw_panels(panels, "routing iteration", title, caption)


def _make_answer_panel(answers: Sequence[RoutedAnew]) -> Panel:
    arrays = collect_answers(answers)
    curves = []
    for label, key in (("class changes", "changed"), ("error", "error")):
        share = arrays[f"answers.{key}"]
        curves.append(BandedCurve(label, arrays["answers.iterations"], share, share, share))
    return Panel("share of images", curves, along="routing iterations at test")


def describe_figure(changes: Changes, routed: RoutedCell) -> str:
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
        f"mean over images, band: {BAND} of them; "
        f"{routed.describe_images()}; trained weights only"
    )
