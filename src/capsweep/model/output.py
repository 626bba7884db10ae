"""What every network returns."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class NetworkOutput(NamedTuple):
    """Scores per class (capsule lengths, activations or logits), and class poses where there are
    capsules. logits_BN: what the scores are a saturating function of, where the routing knows it.
    traces: on request, by layer, what its routing traced.
    """

    scores_BN: Tensor
    pose_BJD: Tensor | None = None
    logits_BN: Tensor | None = None
    traces: Mapping[str, list[dict[str, Tensor]]] | None = None
