"""K-means routing: routing as soft clustering of the votes (Wang and Liu 2018).

Source: "An Optimization View on Dynamic Routing Between Capsules". This form of the algorithm is
from the GitHub repository leftthomas/CapsuleLayer.

    o_j = sum_i u_hat_ij
    for t = 0 .. T-1:
        b_ij = u_hat_ij . o_j / |o_j|         replaces the old b_ij
        c_ij = softmax_j b_ij
        o_j  = sum_i c_ij u_hat_ij
    v_j = squash(o_j)                         once, at the end

Here u_hat_ij is the vote of child i for parent j, and v_j the pose of the parent.

Let m_j = o_j / |o_j|. An iteration first chooses the couplings c_ij and then the directions m_j.
Both choices minimise the same function, so the value of this function never increases:

    sum_ij c_ij ln c_ij - sum_ij c_ij u_hat_ij . m_j         with |m_j| = 1

In dynamic routing the couplings of the first iteration are equal. Here the couplings of the first
iteration already depend on the votes.

An iteration costs 2 B M L J D multiplications; the memory is the size of the votes. Nothing
is learned.

Shape letters: B batch, M parent positions, L children below a position, J parent types at a
position, D parent pose, T iterations.
"""

from torch import Tensor, ones_like
from torch.nn import functional as F

from capsweep.model.capsules import squash
from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.vote_products import FormedVotes, form_votes, make_fast
from capsweep.model.votes import LocalVotes


def reference(votes: LocalVotes | FormedVotes, num_iters: int, with_trace: bool = False) -> Routed:
    """Route votes by soft k-means, with plain tensor operations.

    Args:
        votes: Votes of the children.
        num_iters: Number of iterations T, at least 1.
        with_trace: Whether to return a trace.

    Returns:
        The poses of the M J parents. The activation of a parent is the length of its pose. If there
        is only one position, the result also has the couplings of the last iteration.
    """
    formed, trace = form_votes(votes), list[dict[str, Tensor]]()
    sum_BMJD = formed.sum_votes(ones_like(formed.zero_BMJL))
    while True:
        logit_BMJL = formed.compare_votes(F.normalize(sum_BMJD, dim=-1))
        coupling_BMJL = formed.apply_given(formed.divide_children(logit_BMJL))
        sum_BMJD = formed.sum_votes(coupling_BMJL)
        trace.append({"coupling": coupling_BMJL.mT, "pose": squash(sum_BMJD)})
        if len(trace) == num_iters:
            return make_routed(trace, with_trace)


fast = make_fast(reference)

IMPLS = {"reference": reference, "fast": fast}


class KMeansRouting(RoutingLayer):
    """K-means routing of one layer, without learned parameters.

    Args:
        num_iters: Number of routing iterations.
        impl: Name of an implementation in `IMPLS`, or `auto`.
        sizes: Sizes of the layer.
    """

    coupling_rule = CouplingRule()
    squashes = True

    def __init__(self, num_iters: int, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(IMPLS, impl)
        self.num_iters = num_iters
