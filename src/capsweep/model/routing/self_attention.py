"""Self-attention routing (Mazzia, Salvetti, Chiaberge 2021, "Efficient-CapsNet").

Source: "Efficient-CapsNet: capsule network with self-attention routing".

    b_ij = scale u_hat_ij . sum_k u_hat_kj       row sums of the Gram matrix of the votes for j
    c_ij = (softmax_j b_ij) + beta_ij
    s_j  = sum_i c_ij u_hat_ij
    v_j  = (1 - exp(-|s_j|)) s_j / |s_j|

Here u_hat_ij is the vote of child i for parent j, and v_j the pose of the parent.

The algorithm has a single pass. Each vote attends to the sum of all votes for the same parent,
including the vote itself. The learned beta_ij are added after the softmax, so the couplings of a
child have no fixed sum. Apart from scale and beta, the algorithm is dynamic routing with two
iterations and two changes: the parent of the first iteration is the plain sum of the votes, and the
squash at the end is a different function.

The option `scale` sets the factor of the logits:

- "pose": 1 / sqrt(D), as in the authors' code. The logits then grow with the number of children.
  The authors' network has 16 children.
- "children": 1 / (L sqrt(D)). The sum over k is thus replaced by the mean.

The algorithm costs 2 B M L J D multiplications. The memory is the size of the votes. beta has L J
parameters.

Shape letters: B batch, M parent positions, L children below a position, J parent types at a
position, D parent pose.
"""

import math

import torch
from torch import Tensor, nn

from capsweep.model.routing import LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.vote_products import FormedVotes
from capsweep.model.votes import LocalVotes

NEAR = 1e-4  # for shorter vectors the series is used, with an error of at most 4e-14


def reference(
    votes: LocalVotes, beta_LJ: Tensor, scale: str = "pose", with_trace: bool = False
) -> Routed:
    """Route votes by self-attention, in one pass.

    Args:
        votes: Votes of the children.
        beta_LJ: Learned numbers added to the couplings.
        scale: Factor of the logits. "pose": 1 / sqrt(D). "children": 1 / (L sqrt(D)).
        with_trace: Whether to return a trace of the single pass.

    Returns:
        The poses of the M J parents. The activation of a parent is the length of its pose. If there
        is only one position, the result also has the couplings.
    """
    formed = FormedVotes(votes)
    children, numbers = formed.votes_BMJLD.shape[3:]
    factor = math.sqrt(numbers) * (children if scale == "children" else 1)
    logit_BMJL = formed.compare_votes(formed.votes_BMJLD.sum(dim=3)) / factor
    coupling_BMJL = formed.apply_given(formed.divide_children(logit_BMJL) + beta_LJ.T)
    pose_BMJD = squash_exponentially(formed.sum_votes(coupling_BMJL))
    return make_routed([{"coupling": coupling_BMJL.mT, "pose": pose_BMJD}], with_trace)


def squash_exponentially(s: Tensor) -> Tensor:
    """Shrink each vector of the last axis from its length l to the length 1 - exp(-l).

    The result is s (1 - exp(-l)) / l. If l is below NEAR, (1 - exp(-l)) / l is computed by its
    power series.
    """
    length = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    far = length.clamp(min=NEAR)
    series = 1 - length / 2 + length.square() / 6
    return s * torch.where(length < NEAR, series, -torch.expm1(-far) / far)


IMPLS = {"reference": reference}


class SelfAttentionRouting(RoutingLayer):
    """Self-attention routing of one layer, with a learned beta [L, J], which starts at 0.

    Args:
        scale: Factor of the logits. "pose": 1 / sqrt(D). "children": 1 / (L sqrt(D)).
        impl: Name of an implementation in `IMPLS`, or `auto`.
        sizes: Sizes of the layer.
    """

    squashes = True

    def __init__(self, scale: str, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(IMPLS, impl)
        self.beta_LJ = nn.Parameter(torch.zeros(sizes.children, sizes.parents))
        self.scale = scale
