"""Routing by agreement as a starting point: describe your variant and its source here.

    b_ij = 0
    for t = 0 .. T-1:
        c_ij = softmax_j gain_j b_ij        the shares of a child among its parents
        v_j  = squash(sum_i c_ij u_hat_ij)
        b_ij = b_ij + cos(u_hat_ij, v_j)

This variant differs from dynamic routing (Sabour, Frosst, Hinton 2017, procedure 1) in two things.
The agreement is the cosine of vote and parent, not their scalar product. The agreement is also
multiplied by a learned weight, the gain of the parent. The variant `dynamic` has a bias, which is
in the code of Sabour et al.; for a fair comparison, train `dynamic` with `routing.bias=false`.

An iteration costs 4 B I J D multiplications. The votes take memory for B I J D numbers.

Shape letters: B batch, I children, J parents, D parent pose, T iterations, M parent positions,
L children of one position.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsweep.model.capsules import squash
from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.votes import LocalVotes


def reference(
    votes: LocalVotes,
    num_iters: int,
    gain_J: Tensor,
    with_trace: bool = False,
) -> Routed:
    """Route votes by the equations at the beginning of this file.

    Args:
        votes: The votes; the method `form_local` returns them as a tensor [B, M, L, J, D].
        num_iters: Number of iterations, T.
        gain_J: Gain of each parent [J].
        with_trace: Whether to return the values of all iterations too.

    Returns:
        The poses and activations of the parents; see `Routed`.
    """
    votes_BMLJD, trace = votes.form_local(), list[dict[str, Tensor]]()
    logit_BMLJ = votes_BMLJD.new_zeros(votes_BMLJD.shape[:-1])
    while True:
        coupling_BMLJ = votes.divide_children(gain_J * logit_BMLJ)
        if votes.given_BMLJ is not None:
            coupling_BMLJ = votes.given_BMLJ
        pose_BMJD = squash((coupling_BMLJ[..., None] * votes_BMLJD).sum(dim=2))
        agreement_BMLJ = F.cosine_similarity(votes_BMLJD, pose_BMJD[:, :, None], dim=4)
        trace.append({"coupling": coupling_BMLJ, "pose": pose_BMJD, "agreement": agreement_BMLJ})
        if len(trace) == num_iters:
            return make_routed(trace, with_trace)
        logit_BMLJ = logit_BMLJ + agreement_BMLJ


IMPLS = {"reference": reference}


class MineRouting(RoutingLayer):
    """The routing of one layer, with a learned gain for each parent.

    Args:
        num_iters: Number of iterations.
        gain: The gain of each parent before training.
        impl: Name of the implementation, a key of `IMPLS` or "auto".
        sizes: Sizes of the layer.
    """

    coupling_rule = CouplingRule()  # the shares of a child sum to 1; delete this if they do not
    squashes = True  # the poses of parents are squashed; delete this if they are not

    def __init__(self, num_iters: int, gain: float, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(IMPLS, impl)
        self.num_iters = num_iters
        self.gain_J = nn.Parameter(torch.full((sizes.parents,), gain))
