"""Routing by agreement, to be changed: write here what your variant does, and where it is from.

    b_ij = 0
    for t = 0 .. T-1:
        c_ij = softmax_j gain_j b_ij        each child divides itself among the parents
        v_j  = squash(sum_i c_ij u_hat_ij)
        b_ij = b_ij + cos(u_hat_ij, v_j)

It differs from dynamic routing (Sabour, Frosst, Hinton 2017, procedure 1) in two things: votes
agree by their direction, not by their length, and how much that counts is learned. The variant
`dynamic` has a third, the bias of its authors' code: compare with `routing.bias=false`.

An iteration costs 4 B I J D multiplications; memory is that of the votes, B I J D.

Shape letters: B batch, I children, J parents, D parent pose, T iterations; M parent positions, L
children below one.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsweep.model.capsules import squash
from capsweep.model.routing import (
    CouplingRule,
    LayerSizes,
    Routed,
    choose_impl,
    make_routed_by_length,
)
from capsweep.model.votes import LocalVotes


def reference(
    votes: LocalVotes, num_iters: int, gain_J: Tensor, with_trace: bool = False
) -> Routed:
    """Route `votes` in `num_iters` iterations. `Routed` says what is returned and traced."""
    votes_BMLJD = votes.form_local()
    logit_BMLJ = votes_BMLJD.new_zeros(votes_BMLJD.shape[:-1])
    trace: list[dict[str, Tensor]] = []
    for _ in range(num_iters):
        coupling_BMLJ = votes.divide_children(gain_J * logit_BMLJ)
        pose_BMJD = squash((coupling_BMLJ[..., None] * votes_BMLJD).sum(dim=2))
        agreement_BMLJ = F.cosine_similarity(votes_BMLJD, pose_BMJD[:, :, None], dim=4)
        trace.append({"coupling": coupling_BMLJ, "pose": pose_BMJD, "agreement": agreement_BMLJ})
        logit_BMLJ = logit_BMLJ + agreement_BMLJ
    coupling_BMLJ, pose_BMJD = trace[-1]["coupling"], trace[-1]["pose"]
    return make_routed_by_length(pose_BMJD, coupling_BMLJ, trace if with_trace else None)


IMPLS = {"reference": reference}


class MineRouting(nn.Module):
    """The routing of one layer. Owns the gain of every parent [J], `gain` at first."""

    coupling_rule = CouplingRule()  # the shares of a child sum to 1; leave it out where they do not

    def __init__(self, num_iters: int, gain: float, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__()
        self.num_iters, self.route = num_iters, choose_impl(IMPLS, impl)
        self.gain_J = nn.Parameter(torch.full((sizes.parents,), gain))

    def forward(self, votes: LocalVotes, with_trace: bool = False) -> Routed:
        """Route the votes of this layer's children; with a trace, by the reference."""
        route = partial(reference, with_trace=True) if with_trace else self.route
        return route(votes, self.num_iters, self.gain_J)

    def form_parents(self, votes: LocalVotes, coupling_BMLJ: Tensor) -> Routed:
        """The parents of children with these couplings."""
        pose_BMJD = squash((coupling_BMLJ[..., None] * votes.form_local()).sum(dim=2))
        return make_routed_by_length(pose_BMJD, coupling_BMLJ)
