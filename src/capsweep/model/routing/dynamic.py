"""Dynamic routing by agreement (Sabour, Frosst, Hinton 2017, procedure 1).

    b_ij = prior_ij                         zero unless learned
    for t = 0 .. T-1:
        c_i. = softmax_j b_i.               each child divides itself among the parents
        s_j  = sum_i c_ij u_hat_ij + bias_j
        v_j  = squash(s_j)
        b_ij = b_ij + u_hat_ij . v_j        not after the last iteration: nothing reads it

`normaliser` may be another function than the softmax (`normalisers`): an ingredient that several
papers change. Sums of couplings then are others, and so is the length of s_j at first.

With `none_of_the_above` (section 7) the softmax has one more slot, of logit 0 for ever: it gets no
votes and is no parent, so a child's couplings sum to less than 1.

Where a child stands below several positions, the softmax divides it among the parents at all of
them, another normaliser at each anew.

Gradients flow through all iterations, and the bias is added in each, as in the authors' code.
`gradient: last` lets them flow through the last weighted sum alone, and through the learned prior:
earlier iterations only choose the couplings.

Votes cost B I J P D multiplications, every iteration 2 B I J D; memory is that of the votes, B I J
D.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations; M parent
positions, L children below one, J parent types there.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from capsweep.errors import ConfigError
from capsweep.model.capsules import find_fault_of_kernels, squash
from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.dynamic_fast import route_linear, softmax_over_parents
from capsweep.model.routing.normalisers import DIVIDING, NORMALISERS
from capsweep.model.routing.vote_products import VoteProducts, apply_to_votes, few_images_at_once
from capsweep.model.votes import LocalVotes, Votes, form_parents_first


def reference(
    votes: LocalVotes,
    num_iters: int,
    bias_JD: Tensor | None = None,
    *,
    prior_LJ: Tensor | None = None,
    none_of_the_above: bool = False,
    gradient: str = "full",
    normaliser: str = "softmax",
    with_trace: bool = False,
    given_BMLJ: Tensor | None = None,
) -> Routed:
    """Route `votes` in `num_iters` iterations (procedure 1); with given couplings, by the last
    weighted sum alone.

    Returns the poses of the M J parents, act_BJ = |v_j|, where there is one position the
    coupling_BIJ of the last iteration and, on request, a trace of {"coupling": [B, M, L, J],
    "pose": [B, M, J, D], "agreement": u_hat_ij . v_j [B, M, L, J], what the iteration adds to the
    logits, or in the last one would add} per iteration.
    """
    # They are read 2 T - 1 times, and therefore laid out in order once.
    votes_BMJLD = form_parents_first(votes)
    if given_BMLJ is not None:
        v_BMJD = _sum_and_squash(given_BMLJ.transpose(2, 3), votes_BMJLD, bias_JD)
        return make_routed(v_BMJD, given_BMLJ)
    divide = partial(
        _divide_children, votes=votes, none_of_the_above=none_of_the_above, normaliser=normaliser
    )
    early_BMJLD, early_bias_JD = votes_BMJLD, bias_JD  # of the iterations before the last
    if gradient == "last":
        early_BMJLD = votes_BMJLD.detach()
        early_bias_JD = None if bias_JD is None else bias_JD.detach()

    logit_BMJL = votes_BMJLD.new_zeros(votes_BMJLD.shape[:-1])
    if prior_LJ is not None:
        logit_BMJL = logit_BMJL + prior_LJ.T
    coupling_BMJL = divide(logit_BMJL)
    trace: list[dict[str, Tensor]] = []
    for _ in range(num_iters - 1):
        early_BMJL = coupling_BMJL if gradient == "full" else coupling_BMJL.detach()
        v_BMJD = _sum_and_squash(early_BMJL, early_BMJLD, early_bias_JD)
        agreement_BMJL = _compute_agreement(early_BMJLD, v_BMJD)
        if with_trace:
            trace.append(_make_trace_step(coupling_BMJL, v_BMJD, agreement_BMJL))
        logit_BMJL = logit_BMJL + agreement_BMJL
        coupling_BMJL = divide(logit_BMJL)
    v_BMJD = _sum_and_squash(coupling_BMJL, votes_BMJLD, bias_JD)
    if with_trace:
        agreement_BMJL = _compute_agreement(votes_BMJLD, v_BMJD)
        trace.append(_make_trace_step(coupling_BMJL, v_BMJD, agreement_BMJL))
    return make_routed(v_BMJD, coupling_BMJL.transpose(2, 3), trace if with_trace else None)


def _compute_agreement(votes_BMJLD: Tensor, v_BMJD: Tensor) -> Tensor:
    return torch.matmul(votes_BMJLD, v_BMJD[..., None]).squeeze(-1)


def _make_trace_step(
    coupling_BMJL: Tensor, v_BMJD: Tensor, agreement_BMJL: Tensor
) -> dict[str, Tensor]:
    coupling_BMLJ, agreement_BMLJ = coupling_BMJL.transpose(2, 3), agreement_BMJL.transpose(2, 3)
    return {"coupling": coupling_BMLJ, "pose": v_BMJD, "agreement": agreement_BMLJ}


def _divide_children(
    logit_BMJL: Tensor, votes: LocalVotes, none_of_the_above: bool, normaliser: str
) -> Tensor:
    if normaliser != "softmax":
        return NORMALISERS[normaliser](logit_BMJL, 2)
    if logit_BMJL.shape[1] > 1:
        shares_BMLJ = votes.divide_children(
            logit_BMJL.transpose(2, 3), none_of_the_above=none_of_the_above
        )
        return shares_BMLJ.transpose(2, 3)
    # All parents stand at one position: the same, without moving the children to and fro.
    return softmax_over_parents(logit_BMJL, none_of_the_above, dim=2)


def _sum_and_squash(coupling_BMJL: Tensor, votes_BMJLD: Tensor, bias_JD: Tensor | None) -> Tensor:
    s_BMJD = torch.matmul(coupling_BMJL[..., None, :], votes_BMJLD).squeeze(3)
    return squash(s_BMJD if bias_JD is None else s_BMJD + bias_JD)


def fast(
    votes: LocalVotes,
    num_iters: int,
    bias_JD: Tensor | None = None,
    *,
    prior_LJ: Tensor | None = None,
    none_of_the_above: bool = False,
    gradient: str = "full",
    normaliser: str = "softmax",
) -> Routed:
    """Route as `reference`, in less time and memory, with its options but for traces.

    Linear votes are never formed (`dynamic_fast`), and their couplings have no gradients. Other
    votes, and those that another normaliser than the softmax divides, are a few images at a time
    (`vote_products`).
    """
    if isinstance(votes, Votes) and normaliser == "softmax":
        chosen = {"none_of_the_above": none_of_the_above, "gradient": gradient}
        return route_linear(votes, num_iters, bias_JD, prior_LJ=prior_LJ, **chosen)
    options = normaliser, none_of_the_above, gradient
    return _route_formed(votes, num_iters, bias_JD, prior_LJ, *options)


@few_images_at_once
def _route_formed(
    votes: LocalVotes,
    num_iters: int,
    bias_JD: Tensor | None,
    prior_LJ: Tensor | None,
    *options: Any,
) -> Routed:
    votes_BMJDL = votes.form_numbers_first()
    parents, numbers, children = votes_BMJDL.shape[2:]
    leaves = (
        votes_BMJDL.new_zeros(parents, numbers) if bias_JD is None else bias_JD,
        votes_BMJDL.new_zeros(children, parents) if prior_LJ is None else prior_LJ,
    )
    iterations = partial(_run_iterations, votes, num_iters, *options)
    return make_routed(*apply_to_votes(VoteProducts, iterations, votes_BMJDL, *leaves))


def _run_iterations(
    votes: LocalVotes,
    num_iters: int,
    normaliser: str,
    none_of_the_above: bool,
    gradient: str,
    products: VoteProducts,
    bias_JD: Tensor,
    prior_LJ: Tensor,
) -> Sequence[Tensor]:
    """Return poses and couplings."""
    logit_BMJL = prior_LJ.T.expand(*products.parents[:2], -1, -1)
    iteration = 0
    while True:
        coupling_BMJL = _divide_children(logit_BMJL, votes, none_of_the_above, normaliser)
        iteration += 1
        is_last = iteration >= num_iters
        with torch.set_grad_enabled(torch.is_grad_enabled() and (is_last or gradient == "full")):
            v_BMJD = squash(products.sum_votes(coupling_BMJL) + bias_JD)
            if is_last:
                return v_BMJD, coupling_BMJL.transpose(2, 3)
            agreement_BMJL = products.compare_votes(v_BMJD)
        logit_BMJL = logit_BMJL + agreement_BMJL


def triton_route(
    votes: LocalVotes,
    num_iters: int,
    bias_JD: Tensor | None = None,
    *,
    normaliser: str = "softmax",
    **options: Any,
) -> Routed:
    """Route linear votes on a GPU by `dynamic_triton`, with the options of `fast`.

    Raises ConfigError without triton, and on another device.
    """
    assert isinstance(votes, Votes)
    assert normaliser == "softmax"
    instead = "set routing.impl=auto, fast or reference"
    try:
        from capsweep.model.routing.dynamic_kernels import INTERPRETED
        from capsweep.model.routing.dynamic_triton import route_by_kernels
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ConfigError(
            f"routing.impl=triton needs triton, which is not installed: install it, or {instead}"
        ) from error
    if not votes.pose_BIP.is_cuda and not INTERPRETED:
        raise ConfigError(
            f"routing.impl=triton needs a GPU, and these votes are on {votes.device.type}: set "
            f"trainer.accelerator=gpu, or {instead} (TRITON_INTERPRET=1 in the environment "
            "interprets the kernels on a CPU, for tests)"
        )
    return route_by_kernels(votes, num_iters, bias_JD, **options)


def can_route_by_kernels(votes: LocalVotes, *, normaliser: str = "softmax", **_: Any) -> bool:
    """Return whether `triton_route` takes votes: linear ones on a GPU where its kernels run."""
    is_linear = isinstance(votes, Votes) and normaliser == "softmax"
    return is_linear and votes.device.type == "cuda" and not find_fault_of_kernels(votes.device)


IMPLS = {"reference": reference, "fast": fast, "triton": triton_route}


class DynamicRouting(RoutingLayer):
    """The routing of one layer.

    Owns the parents' bias [J, D], at first 0.1 as the authors' is, and, with `learned_prior`, the
    log priors [I, J] of equation 3, at first zero: they depend on the capsules and not on the
    image. Raises ValueError, naming the key, for options that do not fit together.
    """

    def __init__(
        self,
        num_iters: int,
        bias: bool,
        impl: str,
        none_of_the_above: bool = False,
        learned_prior: bool = False,
        gradient: str = "full",
        normaliser: str = "softmax",
        *,
        sizes: LayerSizes,
    ) -> None:
        _check_normaliser(normaliser, none_of_the_above, impl)
        bias_JD = torch.full((sizes.parents, sizes.parent_pose), 0.1)
        super().__init__(
            IMPLS,
            impl,
            {"triton": can_route_by_kernels},
            num_iters=num_iters,
            bias_JD=nn.Parameter(bias_JD) if bias else None,
            none_of_the_above=none_of_the_above,
            gradient=gradient,
            normaliser=normaliser,
        )
        prior_IJ = torch.zeros(sizes.children, sizes.parents)
        self.prior_IJ = nn.Parameter(prior_IJ) if learned_prior else None
        self.votes_kind = Votes if impl == "triton" else None
        if normaliser == "softmax":
            self.coupling_rule = CouplingRule(none_of_the_above=none_of_the_above)
        elif normaliser in DIVIDING:
            self.coupling_rule = CouplingRule("types")

    def get_arguments(self) -> dict[str, Any]:
        """Return them with the prior."""
        return {**super().get_arguments(), "prior_LJ": self.prior_IJ}


def _check_normaliser(normaliser: str, none_of_the_above: bool, impl: str) -> None:
    if normaliser not in NORMALISERS:
        known = ", ".join(NORMALISERS)
        raise ValueError(f"routing.normaliser must be one of {known}, got {normaliser}")
    cure = "is for a softmax; set routing.normaliser=softmax"
    if none_of_the_above and normaliser != "softmax":
        raise ValueError(f"routing.none_of_the_above=true {cure}")
    if impl == "triton" and normaliser != "softmax":
        raise ValueError(f"routing.impl=triton {cure}")
