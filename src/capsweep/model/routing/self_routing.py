"""Self-routing (Hahn, Pyeon, Kim 2019, "Self-Routing Capsule Networks").

    c_ij = softmax_j (w_ij . u_i + b_ij)         a gate on the child's own pose u_i
    m_j  = sum_i a_i c_ij + 1e-7
    v_j  = sum_i a_i c_ij u_hat_ij / m_j
    a_j  = m_j / sum_k m_k

What sets it apart: a child decides alone, by learned gates w_ij and b_ij, without iterations and
without looking at any vote: a mixture of experts. It can tell a pose from its negative, which
routing by agreement cannot. The activations at one position sum to 1, and their logarithms are the
logits of cross-entropy.

Where a child stands below several positions, it divides itself at each anew. Where no child is
present, all parents are equally active, and their poses are 0.

Gates cost B M L J P multiplications, the sum B M L J D; memory is that of the votes. Gates have
L J (P + 1) parameters.

Shape letters: B batch, M parent positions, L children below one, J parent types there, P child
pose, D parent pose.
"""

import torch
from torch import Tensor, nn

from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.vote_products import FormedVotes
from capsweep.model.votes import LocalVotes

SMALLEST_MASS = 1e-7


def reference(
    votes: LocalVotes,
    gate_LJP: Tensor,
    gate_bias_LJ: Tensor,
    with_trace: bool = False,
) -> Routed:
    """Route `votes`. `Routed` says what is returned."""
    formed = FormedVotes(votes)
    gate_BMLJ = torch.einsum("bmlp,ljp->bmlj", votes.local_poses(), gate_LJP) + gate_bias_LJ
    coupling_BMLJ = formed.settle(votes.divide_children(gate_BMLJ, "types").mT).mT
    weight_BMLJ = coupling_BMLJ * votes.local_activation()[..., None]
    mass_BMJ = weight_BMLJ.sum(dim=2) + SMALLEST_MASS
    pose_BMJD = formed.sum_votes(weight_BMLJ.mT) / mass_BMJ[..., None]
    share_BMJ = mass_BMJ / mass_BMJ.sum(dim=2, keepdim=True)
    step = {"coupling": coupling_BMLJ, "pose": pose_BMJD, "activation": share_BMJ}
    return make_routed([step], with_trace, act_BMJ=share_BMJ, logit_BMJ=share_BMJ.log())


IMPLS = {"reference": reference}


class SelfRouting(RoutingLayer):
    """The routing of one layer. Owns the gates of its children, 0 at first: equal couplings."""

    coupling_rule = CouplingRule("types")
    reads_activations = True

    def __init__(self, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(IMPLS, impl)
        links = sizes.children, sizes.parents
        self.gate_LJP = nn.Parameter(torch.zeros(*links, sizes.child_pose))
        self.gate_bias_LJ = nn.Parameter(torch.zeros(links))
