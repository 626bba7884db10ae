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
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

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
from capsweep.model.votes import (
    LocalVotes,
    compare_votes,
    form_parents_first,
    images_at_once,
    sum_votes,
)


def reference(votes: LocalVotes, num_iters: int, with_trace: bool = False) -> Routed:
    """Route `votes` in `num_iters` iterations. `Routed` says what is returned and traced."""
    votes_BMJLD = form_parents_first(votes)
    sum_BMJD = votes_BMJLD.sum(dim=3)
    trace: list[dict[str, Tensor]] = []
    for _ in range(num_iters):
        logit_BMLJ = compare_votes(votes_BMJLD, F.normalize(sum_BMJD, dim=-1))
        coupling_BMLJ = votes.divide_children(logit_BMLJ)
        sum_BMJD = sum_votes(coupling_BMLJ, votes_BMJLD)
        trace.append({"coupling": coupling_BMLJ, "pose": squash(sum_BMJD)})
    last, shown = trace[-1], trace if with_trace else None
    return make_routed_by_length(last["pose"], last["coupling"], shown)


def fast(votes: LocalVotes, num_iters: int) -> Routed:
    """The same as `reference`, in less time and memory (`vote_products`), and without traces."""
    parts: list[Routed] = []
    for part in votes.split_images(images_at_once(votes)):
        iterations = partial(_run_iterations, part, num_iters)
        votes_BMJDL = part.form_numbers_first()
        pose_BMJD, coupling_BMLJ = apply_to_votes(
            VoteProducts, iterations, votes_BMJDL, votes_BMJDL.sum(dim=4)
        )
        parts.append(make_routed_by_length(pose_BMJD, coupling_BMLJ))
    return join_routed(parts)


def _run_iterations(
    votes: LocalVotes, num_iters: int, products: VoteProducts, sum_BMJD: Tensor
) -> Sequence[Tensor]:
    """Poses and couplings."""
    iteration = 0
    while True:
        logit_BMJL = products.compare_votes(F.normalize(sum_BMJD, dim=-1))
        coupling_BMJL = divide_children(votes, logit_BMJL)
        sum_BMJD = products.sum_votes(coupling_BMJL)
        iteration += 1
        if iteration >= num_iters:
            return squash(sum_BMJD), coupling_BMJL.transpose(2, 3)


IMPLS = {"reference": reference, "fast": fast}


class KMeansRouting(nn.Module):
    """The routing of one layer."""

    coupling_rule = CouplingRule()

    def __init__(self, num_iters: int, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__()
        self.num_iters, self.route = num_iters, choose_impl(IMPLS, impl)

    def forward(self, votes: LocalVotes, with_trace: bool = False) -> Routed:
        """Route the votes of this layer's children; with a trace, by the reference."""
        route = partial(reference, with_trace=True) if with_trace else self.route
        return route(votes, self.num_iters)

    def form_parents(self, votes: LocalVotes, coupling_BMLJ: Tensor) -> Routed:
        """The parents of children with these couplings."""
        pose_BMJD = squash(sum_votes(coupling_BMLJ, form_parents_first(votes)))
        return make_routed_by_length(pose_BMJD, coupling_BMLJ)
