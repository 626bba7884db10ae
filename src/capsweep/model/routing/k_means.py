"""K-means routing: routing as soft clustering (Wang and Liu 2018, "An Optimization View on Dynamic
Routing Between Capsules"; in this form leftthomas/CapsuleLayer).

    o_j = sum_i u_hat_ij
    for t = 0 .. T-1:
        b_ij = u_hat_ij . o_j / |o_j|         made anew in each iteration
        c_ij = softmax_j b_ij
        o_j  = sum_i c_ij u_hat_ij
    v_j = squash(o_j)                         once, at the end

What sets it apart: both steps minimise the same function, so no iteration raises it,

    - sum_ij c_ij u_hat_ij . m_j + sum_ij c_ij ln c_ij       with |m_j| = 1, m_j = o_j / |o_j|

and the first iteration is routed already, by the sum of all votes.

An iteration costs 2 B M L J D multiplications; memory is that of the votes. Nothing is learned.

Shape letters: B batch, M parent positions, L children below one, J parent types there, D parent
pose, T iterations.
"""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from capsweep.model.capsules import squash
from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.vote_products import (
    VoteProducts,
    apply_to_votes,
    divide_children,
    few_images_at_once,
)
from capsweep.model.votes import LocalVotes, compare_votes, form_parents_first, sum_votes


def reference(
    votes: LocalVotes,
    num_iters: int,
    with_trace: bool = False,
    given_BMLJ: Tensor | None = None,
) -> Routed:
    """Route `votes` in `num_iters` iterations; with given couplings, by the last sum alone.
    `Routed` says what is returned and traced.
    """
    votes_BMJLD = form_parents_first(votes)
    if given_BMLJ is not None:
        return make_routed(squash(sum_votes(given_BMLJ, votes_BMJLD)), given_BMLJ)
    sum_BMJD = votes_BMJLD.sum(dim=3)
    trace: list[dict[str, Tensor]] = []
    for _ in range(num_iters):
        logit_BMLJ = compare_votes(votes_BMJLD, F.normalize(sum_BMJD, dim=-1))
        coupling_BMLJ = votes.divide_children(logit_BMLJ)
        sum_BMJD = sum_votes(coupling_BMLJ, votes_BMJLD)
        trace.append({"coupling": coupling_BMLJ, "pose": squash(sum_BMJD)})
    last = trace[-1]
    return make_routed(last["pose"], last["coupling"], trace if with_trace else None)


@few_images_at_once
def fast(votes: LocalVotes, num_iters: int) -> Routed:
    """Route as `reference`, in less time and memory (`vote_products`), and without traces."""

    def iterate(products: VoteProducts, sum_BMJD: Tensor) -> Sequence[Tensor]:
        iteration = 0
        while True:
            logit_BMJL = products.compare_votes(F.normalize(sum_BMJD, dim=-1))
            coupling_BMJL = divide_children(votes, logit_BMJL)
            sum_BMJD = products.sum_votes(coupling_BMJL)
            iteration += 1
            if iteration >= num_iters:
                return squash(sum_BMJD), coupling_BMJL.mT

    votes_BMJDL = votes.form_numbers_first()
    return make_routed(*apply_to_votes(VoteProducts, iterate, votes_BMJDL, votes_BMJDL.sum(dim=4)))


IMPLS = {"reference": reference, "fast": fast}


class KMeansRouting(RoutingLayer):
    """The routing of one layer."""

    coupling_rule = CouplingRule()

    def __init__(self, num_iters: int, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(IMPLS, impl, num_iters=num_iters)
