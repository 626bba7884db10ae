"""How far votes are from the class capsules they vote for, by routing iteration.

Figure 2 of "Matrix capsules with EM routing" (Hinton, Sabour, Frosst 2018): a panel for each
routing iteration t and class c is a histogram over the children i of the distance of vote V_ic,
coordinates added, to the mean mu_c after iteration t, weighted by the assignment R_ic that entered
it. The paper does not say whether distances are squared, nor whether children's activations count:
both are choices here, and told below the figure.

Shape letters: B images, M places, L children, J classes, T routing iterations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from capsweep.errors import NotApplicableError, UserError

LAYER = "classes"
NEEDED = ("coupling", "squared_distance", "activation", "child_activation")
WEIGHTS = {"R": "assignment R", "Ra": "assignment R times the child's activation"}
DISTANCES = {"squared": "squared distance", "plain": "distance"}
PAPER_RANGE = 0.05

Trace = Sequence[Mapping[str, Tensor]]


@dataclass(frozen=True)
class Asked:
    """weights, distance: see the choices above. bins: of equal width from 0 to `end`; end None: to
    the largest distance of the image, in a log scale.
    """

    weights: str
    distance: str
    bins: int
    end: float | None

    def check(self) -> None:
        """Raise UserError naming the option that cannot be meant."""
        for option, value, known in (
            ("--weights", self.weights, WEIGHTS),
            ("--distance", self.distance, DISTANCES),
        ):
            if value not in known:
                raise UserError(f"{option} must be one of {', '.join(known)}, got {value}")
        if self.bins < 1:
            raise UserError(f"--bins must be >= 1, got {self.bins}")
        if self.end is not None and not 0 < self.end < float("inf"):
            raise UserError(f"--range must be full or a number above 0, got {self.end:g}")


@dataclass(frozen=True)
class Histograms:
    """Of one image. weight: in each bin [T, J, bins], and beyond the last one [T, J].

    edges: [bins + 1]; activation: of the class capsules after each iteration [T, J].
    """

    weight: np.ndarray
    beyond: np.ndarray
    edges: np.ndarray
    activation: np.ndarray


def of_image(trace: Trace | None, image: int, asked: Asked) -> Histograms:
    """The histograms of one image of a traced batch.

    trace: per iteration, tensors coupling and squared_distance [B, M, L, J], activation [B, M, J]
    and child_activation [B, M, L]. Raises NotApplicableError for a routing without distances.
    """
    trace = check_trace(trace)
    distance_TXJ = np.stack([_distance(one, image, asked) for one in trace])
    weight_TXJ = np.stack([_weight(one, image, asked) for one in trace])
    end = asked.end if asked.end is not None else float(distance_TXJ.max()) or 1.0
    edges = np.linspace(0, end, asked.bins + 1)
    iterations, _, classes = distance_TXJ.shape
    weight = np.zeros((iterations, classes, asked.bins))
    for t in range(iterations):
        for c in range(classes):
            found = distance_TXJ[t, :, c], edges
            weight[t, c], _ = np.histogram(*found, weights=weight_TXJ[t, :, c])
    activation = np.stack([_double(one["activation"][image].mean(dim=0)) for one in trace])
    return Histograms(weight, weight_TXJ.sum(axis=1) - weight.sum(axis=2), edges, activation)


def check_trace(trace: Trace | None) -> Trace:
    """The trace; raises NotApplicableError where it lacks what the figure needs."""
    if not trace or any(name not in one for one in trace for name in NEEDED):
        raise NotApplicableError(
            "its routing gives no distances of votes; vote distances need routing=em"
        )
    return trace


def _distance(one: Mapping[str, Tensor], image: int, asked: Asked) -> np.ndarray:
    """[X, J], X = M L: all votes of all places."""
    squared_XJ = _double(one["squared_distance"][image].flatten(0, 1))
    return squared_XJ if asked.distance == "squared" else np.sqrt(squared_XJ)


def _weight(one: Mapping[str, Tensor], image: int, asked: Asked) -> np.ndarray:
    """[X, J], as `_distance`."""
    coupling_MLJ = one["coupling"][image]
    if asked.weights == "Ra":
        coupling_MLJ = coupling_MLJ * one["child_activation"][image][..., None]
    return _double(coupling_MLJ.flatten(0, 1))


def _double(values: Tensor) -> np.ndarray:
    return values.detach().to("cpu", torch.float64).numpy()
