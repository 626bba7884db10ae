"""Self-attention routing (Mazzia, Salvetti, Chiaberge 2021, "Efficient-CapsNet: capsule network
with self-attention routing").

    b_ij = scale u_hat_ij . sum_k u_hat_kj       row sums of the Gram matrix of the votes for j
    c_ij = softmax_j b_ij + beta_ij
    s_j  = sum_i c_ij u_hat_ij
    v_j  = (1 - exp(-|s_j|)) s_j / |s_j|

What sets it apart: one pass without iterations, a vote attends to the sum of all votes for its
parent, itself included, and learned beta_ij, added after the softmax, so that the couplings of a
child have no sum. It is dynamic routing of two iterations whose first parent is the plain sum of
the votes and whose last squash is another one.

scale: pose, 1 / sqrt(D), the authors' code, made for 16 children: logits grow with their number;
children, 1 / (L sqrt(D)), a mean of votes in place of the sum.

Cost 2 B M L J D multiplications; memory is that of the votes. beta has L J parameters.

Shape letters: B batch, M parent positions, L children below one, J parent types there, D parent
pose.
"""

import math

import torch
from torch import Tensor, nn

from capsweep.model.routing import LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.vote_products import FormedVotes
from capsweep.model.votes import LocalVotes

NEAR = 1e-4  # below it the series is exact in float64, but for 4e-14


def reference(
    votes: LocalVotes,
    beta_LJ: Tensor,
    scale: str = "pose",
    with_trace: bool = False,
) -> Routed:
    """Route `votes`. `Routed` says what is returned."""
    formed = FormedVotes(votes)
    children, numbers = formed.votes_BMJLD.shape[3:]
    factor = math.sqrt(numbers) * (children if scale == "children" else 1)
    logit_BMJL = formed.compare_votes(formed.votes_BMJLD.sum(dim=3)) / factor
    coupling_BMJL = formed.settle(formed.divide_children(logit_BMJL) + beta_LJ.T)
    pose_BMJD = squash_exponentially(formed.sum_votes(coupling_BMJL))
    return make_routed([{"coupling": coupling_BMJL.mT, "pose": pose_BMJD}], with_trace)


def squash_exponentially(s: Tensor) -> Tensor:
    """Return (1 - exp(-l)) s / l with l = |s|, along the last axis; near 0 by its series."""
    length = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    far = length.clamp(min=NEAR)
    series = 1 - length / 2 + length.square() / 6
    return s * torch.where(length < NEAR, series, -torch.expm1(-far) / far)


IMPLS = {"reference": reference}


class SelfAttentionRouting(RoutingLayer):
    """The routing of one layer. Owns beta of every child and parent type, 0 at first."""

    def __init__(self, scale: str, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(IMPLS, impl)
        self.beta_LJ = nn.Parameter(torch.zeros(sizes.children, sizes.parents))
        self.scale = scale
