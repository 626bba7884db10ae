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
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from capsweep.model.capsules import squash
from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.vote_products import (
    VoteProducts,
    apply_to_votes,
    divide_children,
    few_images_at_once,
)
from capsweep.model.votes import LocalVotes, form_parents_first, sum_votes


def reference(
    votes: LocalVotes,
    num_iters: int,
    bias_JD: Tensor | None = None,
    clip: bool = True,
    with_trace: bool = False,
    given_BMLJ: Tensor | None = None,
) -> Routed:
    """Route `votes` in `num_iters` iterations; with given couplings, by the last sum alone.
    `Routed` says what is returned and traced.
    """
    votes_BMJLD = _form_votes(votes, clip)
    if given_BMLJ is not None:
        pose_BMJD = _add_and_squash(sum_votes(given_BMLJ, votes_BMJLD), bias_JD)
        return make_routed(pose_BMJD, given_BMLJ)
    logit_BMJL = torch.zeros_like(votes_BMJLD[..., 0])
    trace: list[dict[str, Tensor]] = []
    for _ in range(num_iters):
        if trace:
            differences_BMJLD = trace[-1]["pose"][..., None, :] - votes_BMJLD
            logit_BMJL = _scale_distances(torch.linalg.vector_norm(differences_BMJLD, dim=4))
        coupling_BMLJ = votes.divide_children(logit_BMJL.mT)
        pose_BMJD = _add_and_squash(sum_votes(coupling_BMLJ, votes_BMJLD), bias_JD)
        trace.append({"coupling": coupling_BMLJ, "pose": pose_BMJD})
    last = trace[-1]
    return make_routed(last["pose"], last["coupling"], trace if with_trace else None)


def _form_votes(votes: LocalVotes, clip: bool) -> Tensor:
    votes_BMJLD = form_parents_first(votes)
    if not clip:
        return votes_BMJLD
    most_BML = torch.linalg.vector_norm(votes.local_poses(), dim=3)
    length_BMJL = torch.linalg.vector_norm(votes_BMJLD, dim=4)
    return votes_BMJLD * _compute_clip(length_BMJL, most_BML)[..., None]


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


def _add_and_squash(s_BMJD: Tensor, bias_JD: Tensor | None = None) -> Tensor:
    return squash(s_BMJD if bias_JD is None else s_BMJD + bias_JD)


@few_images_at_once
def fast(
    votes: LocalVotes, num_iters: int, bias_JD: Tensor | None = None, clip: bool = True
) -> Routed:
    """Route as `reference`, in less time and memory (`vote_products`), and without traces.

    The square of a distance is |u|^2 - 2 u . v + |v|^2, whose error is one of rounding relative to
    the longer of vote and parent. Measured in single precision, 16 numbers, of votes that agree to
    0.01 of their length: gradients to 3e-4 (the reference's to 1e-5).
    """

    def iterate(
        products: VoteProducts, length_BMJL: Tensor, most_BML: Tensor, *own: Tensor
    ) -> Sequence[Tensor]:
        # Votes are clipped after the products.
        clip_BMJL = _compute_clip(length_BMJL, most_BML) if clip else torch.ones_like(length_BMJL)
        squared_BMJL = (clip_BMJL * length_BMJL).square()
        logit_BMJL, iteration = torch.zeros_like(length_BMJL), 0
        while True:
            coupling_BMJL = divide_children(votes, logit_BMJL)
            s_BMJD = products.sum_votes(clip_BMJL * coupling_BMJL)
            pose_BMJD = _add_and_squash(s_BMJD, *own)
            iteration += 1
            if iteration >= num_iters:
                return pose_BMJD, coupling_BMJL.mT
            product_BMJL = clip_BMJL * products.compare_votes(pose_BMJD)
            squared_BMJ1 = pose_BMJD.square().sum(dim=3, keepdim=True)
            distance_BMJL = _take_root(squared_BMJL - 2 * product_BMJL + squared_BMJ1)
            logit_BMJL = _scale_distances(distance_BMJL)

    votes_BMJDL = votes.form_numbers_first()
    length_BMJL = _take_root(votes_BMJDL.square().sum(dim=3))
    most_BML = torch.linalg.vector_norm(votes.local_poses(), dim=3)
    leaves = length_BMJL, most_BML, *(() if bias_JD is None else (bias_JD,))
    return make_routed(*apply_to_votes(VoteProducts, iterate, votes_BMJDL, *leaves))


def _take_root(squared: Tensor) -> Tensor:
    """Return the root; 0 with gradient 0 where rounding, or nothing, is left."""
    is_more = squared > 0
    return torch.where(is_more, squared, 1.0).sqrt() * is_more


IMPLS = {"reference": reference, "fast": fast}


class SDARouting(RoutingLayer):
    """The routing of one layer. Owns the parents' bias [J, D], 0.1 at first."""

    coupling_rule = CouplingRule()

    def __init__(
        self, num_iters: int, bias: bool, clip: bool, impl: str, *, sizes: LayerSizes
    ) -> None:
        bias_JD = (
            nn.Parameter(torch.full((sizes.parents, sizes.parent_pose), 0.1)) if bias else None
        )
        super().__init__(IMPLS, impl, num_iters=num_iters, bias_JD=bias_JD, clip=clip)
