"""What the routing of a trained cell does for its answers: `capsweep eval routing`.

Its couplings are measured (`coupling_measures`), and its errors compared: as trained; with the
couplings of every layer frozen to their mean over training images, which no image changes; and with
other numbers of iterations than in training.

Shape letters: B images, M parent positions, L children below one, J parent types.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from capsweep.config import code_identity
from capsweep.data.batches import EvaluatedSplit
from capsweep.lab.evaluation.checkpoint import TrainedCell, verify_predictions
from capsweep.lab.evaluation.coupling_measures import LinkSpread, measure_layers
from capsweep.lab.evaluation.traces import RoutedCell, find_routed
from capsweep.ledger.ledger import Predictions
from capsweep.model.routing import Routed
from capsweep.model.votes import LocalVotes
from capsweep.statistics.examples import find_wrong, predict_classes

FILE = "routing.json"
ITERATIONS = (1, 2, 3, 5, 10)


@dataclass(frozen=True)
class RoutedAnew:
    """The same weights, routed with so many iterations. changed: the share of images whose
    predicted classes are others than with those of training; error. None: scores are not finite.
    """

    iterations: int
    changed: float | None
    error: float | None


class FrozenRouting(nn.Module):
    """A routing whose couplings [M, L, J] are given, the same for every image."""

    def __init__(self, routing: nn.Module, coupling_MLJ: Tensor) -> None:
        super().__init__()
        self.routing: Any = routing
        self.coupling_MLJ = coupling_MLJ

    def forward(self, votes: LocalVotes, with_trace: bool = False) -> Routed:
        """The parents of these votes; it traces nothing."""
        pose_BMLP = votes.local_poses()
        coupling_MLJ = self.coupling_MLJ.to(pose_BMLP.device)
        return self.routing.form_parents(votes, coupling_MLJ.expand(len(pose_BMLP), -1, -1, -1))


def measure_routing(cell: TrainedCell, stored: Predictions, examples: int) -> dict[str, Any]:
    """All measures of a cell on its first test images, as plain data for `evals/`.

    Raises NotApplicableError for a network that does not route, and a routing without traces or
    couplings; UserError naming the cell where its network does not give the stored predictions.
    """
    routed = find_routed(cell, examples, None)
    retest = verify_predictions(cell, stored, routed.examples)
    layers = measure_layers(routed)
    iterations = vary_iterations(routed)
    return {
        "examples": routed.examples,
        "ties": retest.ties,
        "layers": {name: layer.summarise() for name, layer in layers.items()},
        "without_sum": [name for name, layer in layers.items() if not layer.has_rule],
        "error": measure_error(routed.predict_scores()),
        "frozen_error": measure_frozen(routed),
        "trained_iterations": cell.config["routing"].get("num_iters"),
        "iterations": None if iterations is None else [asdict(each) for each in iterations],
        "device": str(cell.test.device),
        "code": code_identity.hash_package(),
    }


def measure_error(predictions: Predictions) -> float | None:
    """The share of images that are classified wrongly; None where scores are not finite."""
    if not np.isfinite(predictions[0]).all():
        return None
    return float(find_wrong(*predictions).mean())


def measure_frozen(routed: RoutedCell) -> float | None:
    """The error with the mean couplings of the first training images, as many as test images.

    None for a routing that has no `form_parents`.
    """
    if not all(hasattr(layer.routing, "form_parents") for layer in routed.layers.values()):
        return None
    assert routed.cell.train is not None
    with freeze_couplings(routed, average_couplings(routed, routed.cell.train)):
        return measure_error(routed.predict_scores())


def average_couplings(routed: RoutedCell, split: EvaluatedSplit) -> dict[str, Tensor]:
    """The couplings [M, L, J] of the last iteration, their mean over the first images of a split,
    by layer.
    """
    links: dict[str, LinkSpread] = {}
    last: dict[str, Tensor] = {}
    for traces in routed.trace_batches(split):
        for name, trace in traces.items():
            last[name] = trace[-1]["coupling"]
            each = links.setdefault(name, LinkSpread(last[name][0].numel()))
            each.add_images(last[name].flatten(1))
    return {
        name: links[name].mean_E.to(coupling_BMLJ.dtype).view_as(coupling_BMLJ[0])
        for name, coupling_BMLJ in last.items()
    }


@contextmanager
def freeze_couplings(routed: RoutedCell, couplings: Mapping[str, Tensor]) -> Iterator[None]:
    """Within the block the layers route by these couplings [M, L, J]."""
    routings = {name: layer.routing for name, layer in routed.layers.items()}
    try:
        for name, layer in routed.layers.items():
            layer.routing = FrozenRouting(layer.routing, couplings[name])
        yield
    finally:
        for name, layer in routed.layers.items():
            layer.routing = routings[name]


def vary_iterations(
    routed: RoutedCell, numbers: Sequence[int] = ITERATIONS
) -> list[RoutedAnew] | None:
    """The test images routed with each number of iterations; None for a routing without."""
    trained = routed.cell.config["routing"].get("num_iters")
    if trained is None:
        return None
    scores_MN, labels = _predict_with(routed, int(trained))
    shown = labels.reshape(len(labels), -1).shape[1]
    answers = find_answers(scores_MN, shown)
    reroutings = []
    for number in numbers:
        scores_MN, _ = _predict_with(routed, number)
        if np.isfinite(scores_MN).all():
            changed = float((find_answers(scores_MN, shown) != answers).any(axis=1).mean())
            reroutings.append(RoutedAnew(number, changed, measure_error((scores_MN, labels))))
        else:
            reroutings.append(RoutedAnew(number, None, None))
    return reroutings


def find_answers(scores_MN: np.ndarray, classes: int) -> np.ndarray:
    """The most active classes of every image, sorted [M, classes]: a set."""
    return np.sort(predict_classes(scores_MN, classes), axis=1)


def _predict_with(routed: RoutedCell, iterations: int) -> Predictions:
    routings = [layer.routing for layer in routed.layers.values()]
    before = [routing.num_iters for routing in routings]
    try:
        for routing in routings:
            routing.num_iters = iterations
        return routed.predict_scores()
    finally:
        for routing, number in zip(routings, before, strict=True):
            routing.num_iters = number
