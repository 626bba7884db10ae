"""Self-routing (Hahn, Pyeon, Kim 2019, "Self-Routing Capsule Networks").

    c_ij = softmax_j (w_ij . u_i + b_ij)         a gate that reads the child's own pose u_i
    m_j  = sum_i a_i c_ij + 1e-7
    v_j  = sum_i a_i c_ij u_hat_ij / m_j
    a_j  = m_j / sum_k m_k

Here u_hat_ij is the vote of child i for parent j, a_i the activation of the child, v_j the pose of
the parent, and a_j the activation of the parent.

Each child chooses its parents by learned gates w_ij and b_ij, independently of the other children.
There are no iterations, and the couplings do not depend on the votes. The layer is a mixture of
experts. The gates can distinguish a pose from its negative; routing by agreement cannot. The
activations at one position sum to 1, and their logarithms are logits for cross-entropy.

A child below several positions divides itself at each position separately. If no child is active,
all parents are equally active and their poses are 0.

The gates cost B M L J P multiplications, and the sums of the votes cost B M L J D. The memory is
the size of the votes. The gates have L J (P + 1) parameters.

Shape letters: B batch, M parent positions, L children below a position, J parent types at a
position, P child pose, D parent pose.
"""

import torch
from torch import Tensor, nn

from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.vote_products import FormedVotes
from capsweep.model.votes import LocalVotes

SMALLEST_MASS = 1e-7  # added to every mass, so that no mass is 0


def reference(
    votes: LocalVotes, gate_LJP: Tensor, gate_bias_LJ: Tensor, with_trace: bool = False
) -> Routed:
    """Route votes by learned gates on the poses of the children.

    Args:
        votes: Votes of the children, with activations.
        gate_LJP: Weights of the gates, w.
        gate_bias_LJ: Biases of the gates, b.
        with_trace: Whether to return a trace with a single iteration. Besides "coupling" and
            "pose", the iteration has "activation" [B, M, J].

    Returns:
        The poses and activations of the M J parents, and the logits of the activations. If there
        is only one position, the result also has the couplings.

    Raises:
        ValueError: If the votes have no activations.
    """
    formed = FormedVotes(votes)
    gate_BMLJ = torch.einsum("bmlp,ljp->bmlj", votes.local_poses(), gate_LJP) + gate_bias_LJ
    coupling_BMLJ = formed.apply_given(votes.divide_children(gate_BMLJ, "types").mT).mT
    weight_BMLJ = coupling_BMLJ * votes.local_activation()[..., None]
    mass_BMJ = weight_BMLJ.sum(dim=2) + SMALLEST_MASS
    pose_BMJD = formed.sum_votes(weight_BMLJ.mT) / mass_BMJ[..., None]
    share_BMJ = mass_BMJ / mass_BMJ.sum(dim=2, keepdim=True)
    step = {"coupling": coupling_BMLJ, "pose": pose_BMJD, "activation": share_BMJ}
    return make_routed([step], with_trace, act_BMJ=share_BMJ, logit_BMJ=share_BMJ.log())


IMPLS = {"reference": reference}


class SelfRouting(RoutingLayer):
    """Self-routing of one layer, with learned gates of the children.

    The gates start at 0, so the couplings of a child are equal before training.

    Args:
        impl: Name of an implementation in `IMPLS`, or `auto`.
        sizes: Sizes of the layer.
    """

    coupling_rule = CouplingRule("types")
    reads_activations = True

    def __init__(self, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(IMPLS, impl)
        links = sizes.children, sizes.parents
        self.gate_LJP = nn.Parameter(torch.zeros(*links, sizes.child_pose))
        self.gate_bias_LJ = nn.Parameter(torch.zeros(links))
