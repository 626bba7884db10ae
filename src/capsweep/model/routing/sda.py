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
from functools import partial

import torch
from torch import Tensor, nn

from capsweep.model.capsules import squash
from capsweep.model.routing import (
    CouplingRule,
    LayerSizes,
    Routed,
    choose_impl,
    join_routed,
    make_routed_by_length,
)
from capsweep.model.routing.vote_products import VoteProducts, apply_to_votes, divide_children
from capsweep.model.votes import LocalVotes, form_parents_first, images_at_once, sum_votes


def reference(
    votes: LocalVotes,
    num_iters: int,
    bias_JD: Tensor | None = None,
    clip: bool = True,
    with_trace: bool = False,
) -> Routed:
    """Route `votes` in `num_iters` iterations. `Routed` says what is returned and traced."""
    votes_BMJLD = _form_votes(votes, clip)
    logit_BMJL = torch.zeros_like(votes_BMJLD[..., 0])
    trace: list[dict[str, Tensor]] = []
    for _ in range(num_iters):
        if trace:
            differences_BMJLD = trace[-1]["pose"][..., None, :] - votes_BMJLD
            logit_BMJL = _scale_distances(torch.linalg.vector_norm(differences_BMJLD, dim=4))
        coupling_BMLJ = votes.divide_children(logit_BMJL.transpose(2, 3))
        pose_BMJD = _add_and_squash(sum_votes(coupling_BMLJ, votes_BMJLD), bias_JD)
        trace.append({"coupling": coupling_BMLJ, "pose": pose_BMJD})
    last, shown = trace[-1], trace if with_trace else None
    return make_routed_by_length(last["pose"], last["coupling"], shown)


def _form_votes(votes: LocalVotes, clip: bool) -> Tensor:
    votes_BMJLD = form_parents_first(votes)
    if not clip:
        return votes_BMJLD
    most_BML = torch.linalg.vector_norm(votes.local_poses(), dim=3)
    length_BMJL = torch.linalg.vector_norm(votes_BMJLD, dim=4)
    return votes_BMJLD * _compute_clip(length_BMJL, most_BML)[..., None]


def _compute_clip(length_BMJL: Tensor, most_BML: Tensor) -> Tensor:
    """What votes are multiplied with [B, M, J, L]."""
    tiny = torch.finfo(length_BMJL.dtype).tiny
    most_BM1L = most_BML[:, :, None]
    return torch.where(length_BMJL > most_BM1L, most_BM1L / length_BMJL.clamp(min=tiny), 1.0)


def _scale_distances(distance_BMJL: Tensor) -> Tensor:
    """b [B, M, J, L]; 0 where there is one parent, which has all, or all votes agree."""
    mean_B111 = distance_BMJL.mean(dim=(1, 2, 3), keepdim=True)
    tiny = torch.finfo(mean_B111.dtype).tiny ** 0.5
    parents = distance_BMJL.shape[2]
    factor = -2 * math.log(9 * (parents - 1)) if parents > 1 else 0.0
    return factor * distance_BMJL / mean_B111.clamp(min=tiny)


def _add_and_squash(s_BMJD: Tensor, bias_JD: Tensor | None) -> Tensor:
    return squash(s_BMJD if bias_JD is None else s_BMJD + bias_JD)


def fast(
    votes: LocalVotes, num_iters: int, bias_JD: Tensor | None = None, clip: bool = True
) -> Routed:
    """The same as `reference`, in less time and memory (`vote_products`), and without traces.

    The square of a distance is |u|^2 - 2 u . v + |v|^2, whose error is one of rounding relative to
    the longer of vote and parent. Measured in single precision, 16 numbers, of votes that agree to
    0.01 of their length: gradients to 3e-4 (the reference's to 1e-5).
    """
    parts: list[Routed] = []
    own = () if bias_JD is None else (bias_JD,)
    for part in votes.split_images(images_at_once(votes)):
        iterations = partial(_run_iterations, part, num_iters, clip)
        votes_BMJDL = part.form_numbers_first()
        length_BMJL = _take_root(votes_BMJDL.square().sum(dim=3))
        most_BML = torch.linalg.vector_norm(part.local_poses(), dim=3)
        leaves = length_BMJL, most_BML, *own
        pose_BMJD, coupling_BMLJ = apply_to_votes(VoteProducts, iterations, votes_BMJDL, *leaves)
        parts.append(make_routed_by_length(pose_BMJD, coupling_BMLJ))
    return join_routed(parts)


def _run_iterations(
    votes: LocalVotes,
    num_iters: int,
    clip: bool,
    products: VoteProducts,
    length_BMJL: Tensor,
    most_BML: Tensor,
    bias_JD: Tensor | None = None,
) -> Sequence[Tensor]:
    """Poses and couplings, of votes that are clipped after the products."""
    clip_BMJL = _compute_clip(length_BMJL, most_BML) if clip else torch.ones_like(length_BMJL)
    squared_BMJL = (clip_BMJL * length_BMJL).square()
    logit_BMJL = torch.zeros_like(length_BMJL)
    iteration = 0
    while True:
        coupling_BMJL = divide_children(votes, logit_BMJL)
        s_BMJD = products.sum_votes(clip_BMJL * coupling_BMJL)
        pose_BMJD = _add_and_squash(s_BMJD, bias_JD)
        iteration += 1
        if iteration >= num_iters:
            return pose_BMJD, coupling_BMJL.transpose(2, 3)
        product_BMJL = clip_BMJL * products.compare_votes(pose_BMJD)
        squared_BMJ1 = pose_BMJD.square().sum(dim=3, keepdim=True)
        distance_BMJL = _take_root(squared_BMJL - 2 * product_BMJL + squared_BMJ1)
        logit_BMJL = _scale_distances(distance_BMJL)


def _take_root(squared: Tensor) -> Tensor:
    """0 with gradient 0 where rounding, or nothing, is left."""
    is_more = squared > 0
    return torch.where(is_more, squared, 1.0).sqrt() * is_more


IMPLS = {"reference": reference, "fast": fast}


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
        """Route the votes of this layer's children; with a trace, by the reference."""
        route = partial(reference, with_trace=True) if with_trace else self.route
        return route(votes, self.num_iters, self.bias_JD, self.clip)

    def form_parents(self, votes: LocalVotes, coupling_BMLJ: Tensor) -> Routed:
        """The parents of children with these couplings."""
        s_BMJD = sum_votes(coupling_BMLJ, _form_votes(votes, self.clip))
        return make_routed_by_length(_add_and_squash(s_BMJD, self.bias_JD), coupling_BMLJ)
