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

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from capsweep.errors import NotApplicableError
from capsweep.evaluation.traced_batches import Routed, Trace

LOGITS, ASSIGNMENTS = "logits", "assignments"
TINY = 1e-300
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the quantiles over images


@dataclass(frozen=True)
class Changes:
    """of: logits or assignments. by_layer: of each image and iteration [images, T], or [images,
    T - 1] where the last iteration changes nothing. shares: where it is of logits, of
    all that was added to them so far [images, T].
    """

    of: str
    by_layer: Mapping[str, np.ndarray]
    shares: Mapping[str, np.ndarray] = field(default_factory=dict)

    def arrays(self) -> dict[str, np.ndarray]:
        """LAYER.mean, LAYER.std [T] and LAYER.quantiles [5, T] over images, and the levels;
        LAYER.shares.mean and so on of shares.
        """
        found: dict[str, np.ndarray] = {"levels": np.array(LEVELS), "of": np.array(self.of)}
        below = {f"{layer}.shares": share for layer, share in self.shares.items()}
        for name, change_BT in (dict(self.by_layer) | below).items():
            found[f"{name}.mean"] = change_BT.mean(axis=0)
            found[f"{name}.std"] = change_BT.std(axis=0)
            found[f"{name}.quantiles"] = np.quantile(change_BT, LEVELS, axis=0)
        return found


def measure(routed: Routed) -> Changes:
    """The changes of every image. Raises NotApplicableError for routing that changes nothing."""
    parts: dict[str, list[np.ndarray]] = {}
    shares: dict[str, list[np.ndarray]] = {}
    kinds: set[str] = set()
    for by_layer in routed.traces():
        for layer, trace in by_layer.items():
            kind, change_BT = of_trace(trace)
            kinds.add(kind)
            parts.setdefault(layer, []).append(change_BT.cpu().numpy())
            if kind == LOGITS:
                shares.setdefault(layer, []).append(of_all_so_far(trace).cpu().numpy())
    (kind,) = kinds  # all layers of a network have one routing
    return Changes(kind, _whole(parts), _whole(shares))


def _whole(parts: Mapping[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    return {layer: np.concatenate(found) for layer, found in parts.items()}


def of_trace(trace: Trace) -> tuple[str, Tensor]:
    """What changes, and how much on average in each image and iteration [B, T].

    trace: per iteration, tensors agreement or coupling [B, M, L, J]. Raises NotApplicableError for
    a routing that traces neither, and where assignments have nothing to change to.
    """
    if all("agreement" in one for one in trace):
        return LOGITS, _means([one["agreement"] for one in trace])
    if not all("coupling" in one for one in trace):
        raise NotApplicableError("its routing traces neither agreement nor couplings")
    if len(trace) < 2:
        raise NotApplicableError(
            "its routing changes assignments from one iteration to the next, and has one "
            "iteration; --iterations 3 traces three"
        )
    couplings = [one["coupling"] for one in trace]
    return ASSIGNMENTS, _means([after - before for before, after in pairwise(couplings)])


def of_all_so_far(trace: Trace) -> Tensor:
    """What each iteration adds to logits, over all that was added by then [B, T]; 0 of nothing."""
    added = [one["agreement"] for one in trace]
    return _means(added) / _means(list(accumulate(added))).clamp_min(TINY)


def _means(changes: list[Tensor]) -> Tensor:
    means = [change.abs().mean(dim=(1, 2, 3), dtype=torch.float64) for change in changes]
    return torch.stack(means, dim=1)
