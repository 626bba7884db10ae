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

An iteration costs 5 B M L J D multiplications; memory is that of the votes, twice an iteration.

Shape letters: B batch, M parent positions, L children below one, J parent types there, D parent
pose, T iterations.
"""

import math

import torch
from torch import Tensor, nn

from capsweep.model.capsules import squash
from capsweep.model.routing import (
    CouplingRule,
    LayerSizes,
    Routed,
    choose_impl,
    exclude_from_compiling,
    make_routed,
)
from capsweep.model.votes import LocalVotes, form_parents_first, sum_votes


def reference(
    votes: LocalVotes,
    num_iters: int,
    bias_JD: Tensor | None = None,
    clip: bool = True,
    with_trace: bool = False,
) -> Routed:
    """Route `votes` in `num_iters` iterations. `Routed` says what is returned and traced."""
    votes_BMJLD = _form_votes(votes, clip)
    logit_BMLJ = torch.zeros_like(votes_BMJLD[..., 0]).transpose(2, 3)
    trace: list[dict[str, Tensor]] = []
    for _ in range(num_iters):
        if trace:
            logit_BMLJ = _scale_distances(votes_BMJLD, trace[-1]["pose"])
        coupling_BMLJ = votes.divide_children(logit_BMLJ)
        pose_BMJD = _sum_and_squash(coupling_BMLJ, votes_BMJLD, bias_JD)
        trace.append({"coupling": coupling_BMLJ, "pose": pose_BMJD})
    return _make_routed(**trace[-1], trace=trace if with_trace else None)


def _form_votes(votes: LocalVotes, clip: bool) -> Tensor:
    votes_BMJLD = form_parents_first(votes)
    if not clip:
        return votes_BMJLD
    most_BM1L1 = torch.linalg.vector_norm(votes.local_poses(), dim=3)[:, :, None, :, None]
    length_BMJL1 = torch.linalg.vector_norm(votes_BMJLD, dim=4, keepdim=True)
    tiny = torch.finfo(length_BMJL1.dtype).tiny
    shrunk_BMJL1 = torch.where(
        length_BMJL1 > most_BM1L1, most_BM1L1 / length_BMJL1.clamp(min=tiny), 1.0
    )
    return votes_BMJLD * shrunk_BMJL1


def _scale_distances(votes_BMJLD: Tensor, pose_BMJD: Tensor) -> Tensor:
    """b [B, M, L, J]; 0 where there is one parent, which has all, or all votes agree."""
    distance_BMJL = torch.linalg.vector_norm(pose_BMJD[..., None, :] - votes_BMJLD, dim=4)
    mean_B111 = distance_BMJL.mean(dim=(1, 2, 3), keepdim=True)
    tiny = torch.finfo(mean_B111.dtype).tiny ** 0.5
    parents = votes_BMJLD.shape[2]
    factor = -2 * math.log(9 * (parents - 1)) if parents > 1 else 0.0
    return (factor * distance_BMJL / mean_B111.clamp(min=tiny)).transpose(2, 3)


def _sum_and_squash(coupling_BMLJ: Tensor, votes_BMJLD: Tensor, bias_JD: Tensor | None) -> Tensor:
    s_BMJD = sum_votes(coupling_BMLJ, votes_BMJLD)
    return squash(s_BMJD if bias_JD is None else s_BMJD + bias_JD)


def _make_routed(
    coupling: Tensor, pose: Tensor, trace: list[dict[str, Tensor]] | None = None
) -> Routed:
    return make_routed(pose, torch.linalg.vector_norm(pose, dim=-1), coupling, trace)


IMPLS = {"reference": reference}


class SDARouting(nn.Module):
    """The routing of one layer. Owns the parents' bias [J, D], 0.1 at first."""

    coupling_rule = CouplingRule()

    def __init__(
        self, num_iters: int, bias: bool, clip: bool, impl: str, *, sizes: LayerSizes
    ) -> None:
        super().__init__()
        self.num_iters, self.clip, self.route = num_iters, clip, choose_impl(IMPLS, impl)
        bias_JD = torch.full((sizes.parents, sizes.parent_pose), 0.1)
        self.bias_JD = nn.Parameter(bias_JD) if bias else None

    def forward(self, votes: LocalVotes, with_trace: bool = False) -> Routed:
        """Route the votes of this layer's children."""
        route = exclude_from_compiling(self.route)
        return route(votes, self.num_iters, self.bias_JD, self.clip, with_trace)

    def form_parents(self, votes: LocalVotes, coupling_BMLJ: Tensor) -> Routed:
        """The parents of children with these couplings."""
        votes_BMJLD = _form_votes(votes, self.clip)
        return _make_routed(
            coupling_BMLJ, _sum_and_squash(coupling_BMLJ, votes_BMJLD, self.bias_JD)
        )
