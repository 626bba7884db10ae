"""Inverted dot-product attention routing (Tsai, Srivastava, Goh, Salakhutdinov 2020).

Source: "Capsules with Inverted Dot-Product Attention Routing".

    c_ij = 1 / J
    for t = 0 .. T-1:
        v_j  = LayerNorm(sum_i c_ij u_hat_ij)
        b_ij = u_hat_ij . v_j / sqrt(D)      replaces the old b_ij; skipped after the last iteration
        c_ij = softmax_j b_ij

Here u_hat_ij is the vote of child i for parent j, and v_j the pose of the parent.

Each iteration replaces the logits instead of adding to them, so the couplings converge instead of
becoming one-hot. Parents are normalised instead of squashed. All poses of parents have nearly the
same length, so the length carries no information. A linear head computes the class scores from the
poses. All parents of a layer share the gain and the shift of LayerNorm; both have D numbers. If D
is 1, there is no LayerNorm.

A child below several positions divides itself at each position separately. Layers are routed one
after the other, which the paper calls sequential routing. The authors' primary capsules are
normalised too; ours are squashed.

An iteration costs 2 B M L J D multiplications; the memory is the size of the votes.

Shape letters: B batch, M parent positions, L children below a position, J parent types at a
position, D parent pose, T iterations.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.vote_products import FormedVotes
from capsweep.model.votes import LocalVotes


def reference(
    votes: LocalVotes, num_iters: int, gain_D: Tensor, shift_D: Tensor, with_trace: bool = False
) -> Routed:
    """Route votes by inverted dot-product attention.

    Args:
        votes: Votes of the children.
        num_iters: Number of iterations T, at least 1.
        gain_D: Gain of LayerNorm.
        shift_D: Shift of LayerNorm.
        with_trace: Whether to return a trace.

    Returns:
        The poses of the M J parents. All activations are 1. If there is only one position, the
        result also has the couplings of the last iteration.
    """
    formed, trace = FormedVotes(votes), list[dict[str, Tensor]]()
    logit_BMJL = formed.zero_BMJL
    while True:
        coupling_BMJL = formed.apply_given(formed.divide_children(logit_BMJL, "types"))
        pose_BMJD = _normalise(formed.sum_votes(coupling_BMJL), gain_D, shift_D)
        trace.append({"coupling": coupling_BMJL.mT, "pose": pose_BMJD})
        if len(trace) == num_iters:  # no activations: all parents count as active
            return make_routed(trace, with_trace, act_BMJ=torch.ones_like(pose_BMJD[..., 0]))
        logit_BMJL = formed.compare_votes(pose_BMJD) / math.sqrt(len(gain_D))


def _normalise(sum_BMJD: Tensor, gain_D: Tensor, shift_D: Tensor) -> Tensor:
    return sum_BMJD if len(gain_D) == 1 else F.layer_norm(sum_BMJD, gain_D.shape, gain_D, shift_D)


IMPLS = {"reference": reference}


class InvertedAttentionRouting(RoutingLayer):
    """Inverted attention routing of one layer, with a learned gain and shift of LayerNorm.

    The gain [D] starts at 1, and the shift [D] starts at 0.

    Args:
        num_iters: Number of routing iterations.
        impl: Name of an implementation in `IMPLS`, or `auto`.
        sizes: Sizes of the layer.
    """

    coupling_rule = CouplingRule("types")
    has_activations = False

    def __init__(self, num_iters: int, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(IMPLS, impl)
        self.num_iters = num_iters
        self.gain_D = nn.Parameter(torch.ones(sizes.parent_pose))
        self.shift_D = nn.Parameter(torch.zeros(sizes.parent_pose))
