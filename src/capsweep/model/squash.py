"""The squashing non-linearity of capsules."""

import torch
from torch import Tensor


def squash(s: Tensor) -> Tensor:
    """Shrink the last axis to a length in [0, 1), direction kept.

    v = |s|^2 / (1 + |s|^2) * s / |s|, equation 1 of "Dynamic Routing Between Capsules", written as
    s |s| / (1 + |s|^2): exact, with value and gradient 0 at s = 0.
    """
    length = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    return s * (length / (1 + length * length))
