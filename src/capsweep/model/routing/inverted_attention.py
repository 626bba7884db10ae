"""Inverted dot-product attention routing (Tsai, Srivastava, Goh, Salakhutdinov 2020, "Capsules with
Inverted Dot-Product Attention Routing").

    c_ij = 1 / J
    for t = 0 .. T-1:
        v_j  = LayerNorm(sum_i c_ij u_hat_ij)
        b_ij = u_hat_ij . v_j / sqrt(D)         made anew in each iteration; not after the last
        c_ij = softmax_j b_ij

What sets it apart: logits do not add up, so couplings come to rest instead of becoming one-hot, and
parents are normalised, not squashed. Their length is nearly the same for all, so it says nothing:
the class is read off the pose by a linear head. Gain and shift of LayerNorm, D each, are those of
all parents of a layer; there is no LayerNorm where D is 1.

Where a child stands below several positions, it divides itself at each anew. Layers are routed one
after the other (sequentially, in the words of the paper). Its authors' primary capsules are
normalised too, and ours are squashed.

An iteration costs 2 B M L J D multiplications; memory is that of the votes.

Shape letters: B batch, M parent positions, L children below one, J parent types there, D parent
pose, T iterations.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.vote_products import FormedVotes
from capsweep.model.votes import LocalVotes


def reference(
    votes: LocalVotes,
    num_iters: int,
    gain_D: Tensor,
    shift_D: Tensor,
    with_trace: bool = False,
) -> Routed:
    """Route `votes` in `num_iters` iterations. `Routed` says what is returned and traced."""
    formed, trace = FormedVotes(votes), list[dict[str, Tensor]]()
    logit_BMJL = formed.zero_BMJL
    while True:
        coupling_BMJL = formed.settle(formed.divide_children(logit_BMJL, "types"))
        pose_BMJD = _normalise(formed.sum_votes(coupling_BMJL), gain_D, shift_D)
        trace.append({"coupling": coupling_BMJL.mT, "pose": pose_BMJD})
        if len(trace) == num_iters:  # without activations: all present
            return make_routed(trace, with_trace, act_BMJ=torch.ones_like(pose_BMJD[..., 0]))
        logit_BMJL = formed.compare_votes(pose_BMJD) / math.sqrt(len(gain_D))


def _normalise(sum_BMJD: Tensor, gain_D: Tensor, shift_D: Tensor) -> Tensor:
    return sum_BMJD if len(gain_D) == 1 else F.layer_norm(sum_BMJD, gain_D.shape, gain_D, shift_D)


IMPLS = {"reference": reference}


class InvertedAttentionRouting(RoutingLayer):
    """The routing of one layer. Owns the gain and the shift of LayerNorm, 1 and 0 at first."""

    coupling_rule = CouplingRule("types")
    has_activations = False

    def __init__(self, num_iters: int, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(IMPLS, impl)
        self.num_iters = num_iters
        self.gain_D = nn.Parameter(torch.ones(sizes.parent_pose))
        self.shift_D = nn.Parameter(torch.zeros(sizes.parent_pose))
