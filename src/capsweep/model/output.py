"""What every network returns."""

from typing import NamedTuple

from torch import Tensor


class NetworkOutput(NamedTuple):
    """Scores per class (capsule lengths or logits), and class poses where there are capsules."""

    scores_BN: Tensor
    pose_BJD: Tensor | None = None
