"""The squashing non-linearity of capsules."""

import torch
from torch import Tensor


def squash(s: Tensor, dim: int = -1) -> Tensor:
    """Shrink the axis `dim` to a length in [0, 1), direction kept.

    v = |s|^2 / (1 + |s|^2) * s / |s|, equation 1 of "Dynamic Routing Between Capsules", written as
    s |s| / (1 + |s|^2): exact, with value and gradient 0 at s = 0.
    """
    length = torch.linalg.vector_norm(s, dim=dim, keepdim=True)
    return s * (length / (1 + length * length))


def squash_gradient(s: Tensor, gradient: Tensor, dim: int = -1) -> Tensor:
    """The gradient by `s` of what has this `gradient` by squash(s).

    With l = |s|: l / (1 + l^2) g + (1 - l^2) / (l (1 + l^2)^2) (s . g) s; 0 at s = 0.
    """
    length = torch.linalg.vector_norm(s, dim=dim, keepdim=True)
    shrunk = 1 + length * length
    slope = (1 - length * length) / (shrunk * shrunk)
    direction = s / length.clamp(min=torch.finfo(s.dtype).tiny)
    along = (direction * gradient).sum(dim=dim, keepdim=True)
    return gradient * (length / shrunk) + s * (slope * along)
