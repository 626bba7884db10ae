"""Procedure 1 of "Dynamic Routing Between Capsules", written out, and layers to route.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from capsweep.model.votes import Votes

# Batch, children, parents, pose of a child, pose of a parent.
Size = tuple[int, int, int, int, int]
AWKWARD: list[Size] = [(1, 1, 1, 1, 1), (2, 5, 3, 4, 2), (3, 1, 7, 2, 5), (2, 11, 1, 3, 1)]


class Iteration(NamedTuple):
    """What one iteration found, for one item; none_I is what is left for none of the parents,
    agreement_IJ what it adds to the logits.
    """

    coupling_IJ: np.ndarray
    pose_JD: np.ndarray
    none_I: np.ndarray
    agreement_IJ: np.ndarray


def procedure_1(
    pose_IP: np.ndarray,
    weight_IJDP: np.ndarray,
    bias_JD: np.ndarray,
    num_iters: int,
    prior_IJ: np.ndarray | None = None,
    none_of_the_above: bool = False,
) -> list[Iteration]:
    """Procedure 1 for one item, one scalar at a time; the logit of none-of-the-above is 0."""
    num_children, num_parents, parent_pose, _ = weight_IJDP.shape
    u_hat = np.zeros((num_children, num_parents, parent_pose))
    for i, j, d, p in np.ndindex(weight_IJDP.shape):
        u_hat[i, j, d] += weight_IJDP[i, j, d, p] * pose_IP[i, p]
    b = np.zeros((num_children, num_parents)) if prior_IJ is None else prior_IJ.copy()
    iterations = []
    for _ in range(num_iters):
        c, none = np.zeros_like(b), np.zeros(num_children)
        for i in range(num_children):
            total = sum(math.exp(b[i, j]) for j in range(num_parents))
            if none_of_the_above:
                total += math.exp(0)
                none[i] = math.exp(0) / total
            for j in range(num_parents):
                c[i, j] = math.exp(b[i, j]) / total
        v = np.zeros((num_parents, parent_pose))
        for j in range(num_parents):
            s = bias_JD[j].copy()
            for i in range(num_children):
                s += c[i, j] * u_hat[i, j]
            norm_squared = sum(x * x for x in s)
            v[j] = norm_squared / (1 + norm_squared) * s / math.sqrt(norm_squared)
        before = b.copy()
        for i, j, d in np.ndindex(u_hat.shape):
            b[i, j] += u_hat[i, j, d] * v[j, d]
        iterations.append(Iteration(c, v, none, b - before))
    return iterations


class Layer(NamedTuple):
    """The input of one routed layer, and what it may own."""

    pose_BIP: Tensor
    weight_IJDP: Tensor
    bias_JD: Tensor
    prior_IJ: Tensor

    @property
    def votes(self) -> Votes:
        """Of the children for the parents."""
        return Votes(self.pose_BIP, self.weight_IJDP)


def layer(size: Size, seed: int = 0) -> Layer:
    """Standard normal poses, weights, bias and log priors, in float64."""
    batch, children, parents, child_pose, parent_pose = size
    generator = torch.Generator().manual_seed(seed + sum(size))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return Layer(
        normal(batch, children, child_pose),
        normal(children, parents, parent_pose, child_pose),
        normal(parents, parent_pose),
        normal(children, parents),
    )


def assert_equal(found: Tensor, expected: np.ndarray) -> None:
    """Equal but for rounding in float64."""
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=0, atol=1e-12)
