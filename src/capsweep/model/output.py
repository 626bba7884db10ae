"""What every network returns."""

from typing import NamedTuple

from torch import Tensor


class NetworkOutput(NamedTuple):
    """scores_BN per class (capsule lengths or logits), and the class poses where there are capsules."""

    scores_BN: Tensor
    pose_BJD: Tensor | None = None
