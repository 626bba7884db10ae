"""Routing by scaled distance agreement (Peer, Stabinger, Rodriguez-Sanchez 2018, "Training Deep
Capsule Networks", gamma-capsules).

    u_hat_ij = u_hat_ij min(|u_hat_ij|, |u_i|) / |u_hat_ij|      with clip: no longer than its child
    b_ij = 0
    for t = 0 .. T-1:
        c_ij = softmax_j b_ij
        v_j  = squash(sum_i c_ij u_hat_ij + bias_j)
        d_ij = |v_j - u_hat_ij|;  d = mean of d_ij
        b_ij = - 2 ln(9 (J - 1)) d_ij / d          assigned, not added; not after the last iteration

What sets it apart: votes agree by distance, and logits are scaled such that a parent at half the
mean distance gets 0.9 of a child when all others are at the mean. Couplings are therefore near to
one-hot by construction, like a parse tree. Its authors' code takes the mean over the whole batch,
so that an image depends on its batch mates; here it is that of each image, over all its votes.

Where a child stands below several positions, J counts the parents at one of them. An iteration
costs 2 B M L J D multiplications; memory of the reference is that of the votes, twice an iteration.

Shape letters: B batch, M parent positions, L children below one, J parent types there, D parent
pose, T iterations.
"""

import math

import torch
from torch import Tensor, nn

from capsweep.model.capsules import squash
from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.vote_products import FormedVotes, VoteProducts, by_products, form_votes
from capsweep.model.votes import LocalVotes


class MeasuredVotes(FormedVotes):
    """Votes whose distances from the poses of parents are asked for."""

    def clip_votes(self) -> None:
        """Make no vote longer than its child."""
        length_BMJL = torch.linalg.vector_norm(self.votes_BMJLD, dim=4)
        most_BML = torch.linalg.vector_norm(self.votes.local_poses(), dim=3)
        self.votes_BMJLD = self.votes_BMJLD * _compute_clip(length_BMJL, most_BML)[..., None]

    def measure_distances(self, pose_BMJD: Tensor) -> Tensor:
        """Return the distances [B, M, J, L] of the votes from the poses."""
        return torch.linalg.vector_norm(pose_BMJD[..., None, :] - self.votes_BMJLD, dim=4)


class MeasuredProducts(VoteProducts):
    """The same of votes that are clipped after their products.

    The square of a distance is |u|^2 - 2 u . v + |v|^2, whose error is one of rounding relative to
    the longer of vote and parent. Measured in single precision, 16 numbers, of votes that agree to
    0.01 of their length: gradients to 3e-4 (the reference's to 1e-5).
    """

    clip_BMJL: Tensor | float = 1.0

    @staticmethod
    def read_constants(votes: LocalVotes, votes_BMJDL: Tensor) -> list[Tensor]:
        """Return the lengths of votes [B, M, J, L] and of children [B, M, L]."""
        length_BMJL = _take_root(votes_BMJDL.square().sum(dim=3))
        return [length_BMJL, torch.linalg.vector_norm(votes.local_poses(), dim=3)]

    def clip_votes(self) -> None:
        """Make no vote longer than its child."""
        self.clip_BMJL = _compute_clip(*self.constants)

    def sum_votes(self, share_BMJL: Tensor) -> Tensor:
        """Return sum_l s_l V_l [B, M, J, D]."""
        return super().sum_votes(self.clip_BMJL * share_BMJL)

    def measure_distances(self, pose_BMJD: Tensor) -> Tensor:
        """Return the distances [B, M, J, L] of the votes from the poses."""
        product_BMJL = self.clip_BMJL * self.compare_votes(pose_BMJD)
        squared_BMJL = (self.clip_BMJL * self.constants[0]).square()
        squared_BMJ1 = pose_BMJD.square().sum(dim=3, keepdim=True)
        return _take_root(squared_BMJL - 2 * product_BMJL + squared_BMJ1)


def reference(
    votes: LocalVotes | MeasuredProducts,
    num_iters: int,
    bias_JD: Tensor | None = None,
    clip: bool = True,
    with_trace: bool = False,
) -> Routed:
    """Route `votes` in `num_iters` iterations. `Routed` says what is returned and traced."""
    formed, trace = form_votes(votes, MeasuredVotes), list[dict[str, Tensor]]()
    if clip:
        formed.clip_votes()
    logit_BMJL = formed.zero_BMJL
    while True:
        coupling_BMJL = formed.settle(formed.divide_children(logit_BMJL))
        s_BMJD = formed.sum_votes(coupling_BMJL)
        pose_BMJD = squash(s_BMJD if bias_JD is None else s_BMJD + bias_JD)
        trace.append({"coupling": coupling_BMJL.mT, "pose": pose_BMJD})
        if len(trace) == num_iters:
            return make_routed(trace, with_trace)
        logit_BMJL = _scale_distances(formed.measure_distances(pose_BMJD))


def _compute_clip(length_BMJL: Tensor, most_BML: Tensor) -> Tensor:
    """Return what votes are multiplied with [B, M, J, L]."""
    tiny = torch.finfo(length_BMJL.dtype).tiny
    most_BM1L = most_BML[:, :, None]
    return torch.where(length_BMJL > most_BM1L, most_BM1L / length_BMJL.clamp(min=tiny), 1.0)


def _scale_distances(distance_BMJL: Tensor) -> Tensor:
    """Return b [B, M, J, L]; 0 where there is one parent, which has all, or all votes agree."""
    mean_B111 = distance_BMJL.mean(dim=(1, 2, 3), keepdim=True)
    tiny = torch.finfo(mean_B111.dtype).tiny ** 0.5
    parents = distance_BMJL.shape[2]
    factor = -2 * math.log(9 * (parents - 1)) if parents > 1 else 0.0
    return factor * distance_BMJL / mean_B111.clamp(min=tiny)


def _take_root(squared: Tensor) -> Tensor:
    """Return the root; 0 with gradient 0 where rounding, or nothing, is left."""
    is_more = squared > 0
    return torch.where(is_more, squared, 1.0).sqrt() * is_more


fast = by_products(reference, MeasuredProducts)

IMPLS = {"reference": reference, "fast": fast}


class SDARouting(RoutingLayer):
    """The routing of one layer. Owns the parents' bias [J, D], 0.1 at first."""

    coupling_rule = CouplingRule()

    def __init__(
        self, num_iters: int, bias: bool, clip: bool, impl: str, *, sizes: LayerSizes
    ) -> None:
        super().__init__(IMPLS, impl)
        self.num_iters, self.clip = num_iters, clip
        bias_JD = torch.full((sizes.parents, sizes.parent_pose), 0.1)
        self.bias_JD = nn.Parameter(bias_JD) if bias else None
