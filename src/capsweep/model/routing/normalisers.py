"""What turns the logits of a child into its couplings to the parents.

    softmax     c_j = exp(b_j) / sum_k exp(b_k)
    sigmoid     c_j = 1 / (1 + exp(-b_j))                   at first 1/2
    max_min     c_j = (b_j - min b) / (max b - min b)       1 where all are equal, as at first
    sparsemax   c_j = max(b_j - tau, 0)                     the nearest point of the simplex
    entmax      c_j = max(b_j / 2 - tau, 0)^2               alpha = 1.5

with tau such that the couplings sum to 1. Those of sigmoid and max_min have no sum: at first a
parent gets J / 2 and J times as much as from a softmax. The bounds of max_min, 0 and 1, and what it
makes of equal logits are ours; there it has no gradient, so that a learned prior rests in a single
iteration.

Sources: max_min, Zhao et al. 2019, "Capsule Networks with Max-Min Normalization"; sigmoid, as in
LaLonde et al. 2020, "Encoding Visual Attributes in Capsules for Explainable Medical Diagnoses";
sparsemax, Martins and Astudillo 2016; entmax, Peters, Niculae and Martins 2019.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def divide_max_min(logit: Tensor, dim: int) -> Tensor:
    """Map logits along `dim` so that the smallest is 0 and the largest 1; equal ones are all 1."""
    # Not aminmax, which has no gradient on CUDA.
    lowest, highest = logit.amin(dim=dim, keepdim=True), logit.amax(dim=dim, keepdim=True)
    span = highest - lowest
    is_spread = span > 0
    return torch.where(is_spread, (logit - lowest) / torch.where(is_spread, span, 1.0), 1.0)


def divide_sparsemax(logit: Tensor, dim: int) -> Tensor:
    """The Euclidean projection on the simplex."""
    logit = logit - logit.detach().amax(dim=dim, keepdim=True)
    support = find_support(logit.detach(), dim, _sparsemax_threshold)
    return (logit - _sparsemax_threshold(*_moments(logit, support, dim))).clamp(min=0) * support


def divide_entmax(logit: Tensor, dim: int) -> Tensor:
    """The 1.5-entmax: between softmax and sparsemax."""
    half = (logit - logit.detach().amax(dim=dim, keepdim=True)) / 2
    support = find_support(half.detach(), dim, _entmax_threshold)
    return ((half - _entmax_threshold(*_moments(half, support, dim))) * support).square()


NORMALISERS: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "softmax": lambda logit, dim: torch.softmax(logit, dim=dim),
    "sigmoid": lambda logit, dim: torch.sigmoid(logit),
    "max_min": divide_max_min,
    "sparsemax": divide_sparsemax,
    "entmax": divide_entmax,
}
DIVIDING = ("softmax", "sparsemax", "entmax")  # whose couplings sum to 1

Threshold = Callable[[Tensor, Tensor, Tensor], Tensor]  # of count, mean and mean square


def find_support(logit: Tensor, dim: int, threshold: Threshold) -> Tensor:
    """Where couplings are above 0: the largest k logits, of the largest k whose own threshold is
    below the least of them.
    """
    ordered = logit.sort(dim=dim, descending=True).values
    shape = [1] * logit.dim()
    shape[dim] = -1
    count = torch.arange(1, logit.shape[dim] + 1, device=logit.device).to(logit).view(shape)
    means = ordered.cumsum(dim) / count, ordered.square().cumsum(dim) / count
    is_above = ordered > threshold(count, *means)
    last = is_above.sum(dim=dim, keepdim=True).clamp(min=1) - 1
    return (logit >= ordered.gather(dim, last)).to(logit)


def _moments(logit: Tensor, support: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    count = support.sum(dim=dim, keepdim=True)
    chosen = logit * support
    mean, square = (x.sum(dim=dim, keepdim=True) / count for x in (chosen, chosen * logit))
    return count, mean, square


def _sparsemax_threshold(count: Tensor, mean: Tensor, square: Tensor) -> Tensor:
    return mean - 1 / count


def _entmax_threshold(count: Tensor, mean: Tensor, square: Tensor) -> Tensor:
    # Of a support the root is above 0; of longer prefixes it may not exist, and they are none.
    return mean - (1 / count - (square - mean.square())).clamp(min=0).sqrt()
