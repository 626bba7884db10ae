"""Dynamic routing by agreement (Sabour, Frosst, Hinton 2017, procedure 1).

    b_ij = prior_ij                         zero unless learned
    for t = 0 .. T-1:
        c_i. = softmax_j b_i.               each child divides itself among the parents
        s_j  = sum_i c_ij u_hat_ij + bias_j
        v_j  = squash(s_j)
        b_ij = b_ij + u_hat_ij . v_j        not after the last iteration: nothing reads it

`normaliser` may be another function than the softmax, an ingredient that several papers change:

    softmax     c_j = exp(b_j) / sum_k exp(b_k)
    sigmoid     c_j = 1 / (1 + exp(-b_j))                   at first 1/2
    max_min     c_j = (b_j - min b) / (max b - min b)       1 where all are equal, as at first
    sparsemax   c_j = max(b_j - tau, 0)                     the nearest point of the simplex
    entmax      c_j = max(b_j / 2 - tau, 0)^2               alpha = 1.5

with tau such that the couplings sum to 1. Those of sigmoid and max_min have no sum: at first a
parent gets J / 2 and J times as much as from a softmax. The bounds of max_min, 0 and 1, and what it
makes of equal logits are ours; there it has no gradient, so that a learned prior rests in a single
iteration.

Sources: max_min, Zhao et al. 2019, "Capsule Networks with Max-Min Normalization"; sigmoid, as in
LaLonde et al. 2020, "Encoding Visual Attributes in Capsules for Explainable Medical Diagnoses";
sparsemax, Martins and Astudillo 2016; entmax, Peters, Niculae and Martins 2019.

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

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from capsweep.errors import ConfigError
from capsweep.model.capsules import find_fault_of_kernels, squash
from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.dynamic_fast import route_linear
from capsweep.model.routing.vote_products import FormedVotes, by_products, form_votes
from capsweep.model.votes import LocalVotes, Votes


def divide_max_min(logit: Tensor, dim: int) -> Tensor:
    """Map logits along `dim` so that the smallest is 0 and the largest 1; equal ones are all 1."""
    # Not aminmax, which has no gradient on CUDA.
    lowest, highest = logit.amin(dim=dim, keepdim=True), logit.amax(dim=dim, keepdim=True)
    span = highest - lowest
    is_spread = span > 0
    return torch.where(is_spread, (logit - lowest) / torch.where(is_spread, span, 1.0), 1.0)


def divide_sparsemax(logit: Tensor, dim: int) -> Tensor:
    """The Euclidean projection on the simplex."""
    logit = logit - logit.detach().amax(dim=dim, keepdim=True)
    support = find_support(logit.detach(), dim, _sparsemax_threshold)
    return (logit - _sparsemax_threshold(*_moments(logit, support, dim))).clamp(min=0) * support


def divide_entmax(logit: Tensor, dim: int) -> Tensor:
    """The 1.5-entmax: between softmax and sparsemax."""
    half = (logit - logit.detach().amax(dim=dim, keepdim=True)) / 2
    support = find_support(half.detach(), dim, _entmax_threshold)
    return ((half - _entmax_threshold(*_moments(half, support, dim))) * support).square()


NORMALISERS: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "softmax": lambda logit, dim: torch.softmax(logit, dim=dim),
    "sigmoid": lambda logit, dim: torch.sigmoid(logit),
    "max_min": divide_max_min,
    "sparsemax": divide_sparsemax,
    "entmax": divide_entmax,
}
DIVIDING = ("softmax", "sparsemax", "entmax")  # whose couplings sum to 1

Threshold = Callable[[Tensor, Tensor, Tensor], Tensor]  # of count, mean and mean square


def find_support(logit: Tensor, dim: int, threshold: Threshold) -> Tensor:
    """Where couplings are above 0: the largest k logits, of the largest k whose own threshold is
    below the least of them.
    """
    ordered = logit.sort(dim=dim, descending=True).values
    shape = [1] * logit.dim()
    shape[dim] = -1
    count = torch.arange(1, logit.shape[dim] + 1, device=logit.device).to(logit).view(shape)
    means = ordered.cumsum(dim) / count, ordered.square().cumsum(dim) / count
    is_above = ordered > threshold(count, *means)
    last = is_above.sum(dim=dim, keepdim=True).clamp(min=1) - 1
    return (logit >= ordered.gather(dim, last)).to(logit)


def _moments(logit: Tensor, support: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    count = support.sum(dim=dim, keepdim=True)
    chosen = logit * support
    mean, square = (x.sum(dim=dim, keepdim=True) / count for x in (chosen, chosen * logit))
    return count, mean, square


def _sparsemax_threshold(count: Tensor, mean: Tensor, square: Tensor) -> Tensor:
    return mean - 1 / count


def _entmax_threshold(count: Tensor, mean: Tensor, square: Tensor) -> Tensor:
    # Of a support the root is above 0; of longer prefixes it may not exist, and they are none.
    return mean - (1 / count - (square - mean.square())).clamp(min=0).sqrt()


def reference(
    votes: LocalVotes | FormedVotes,
    num_iters: int,
    bias_JD: Tensor | None = None,
    *,
    prior_LJ: Tensor | None = None,
    none_of_the_above: bool = False,
    gradient: str = "full",
    normaliser: str = "softmax",
    with_trace: bool = False,
) -> Routed:
    """Route `votes` in `num_iters` iterations (procedure 1).

    Returns the poses of the M J parents, act_BJ = |v_j|, where there is one position the
    coupling_BIJ of the last iteration and, on request, a trace of {"coupling": [B, M, L, J],
    "pose": [B, M, J, D], "agreement": u_hat_ij . v_j [B, M, L, J], what the iteration adds to the
    logits, or in the last one would add} per iteration.
    """
    formed, trace = form_votes(votes), list[dict[str, Tensor]]()
    first_JL = formed.zero_BMJL[:1, :1] if prior_LJ is None else prior_LJ.T
    logit_BMJL = first_JL.expand_as(formed.zero_BMJL)
    while True:
        if normaliser == "softmax":
            coupling_BMJL = formed.divide_children(logit_BMJL, "all", none_of_the_above)
        else:
            coupling_BMJL = NORMALISERS[normaliser](logit_BMJL, 2)
        coupling_BMJL, is_last = formed.settle(coupling_BMJL), len(trace) == num_iters - 1
        with torch.set_grad_enabled(torch.is_grad_enabled() and (is_last or gradient == "full")):
            s_BMJD = formed.sum_votes(coupling_BMJL)
            v_BMJD = squash(s_BMJD if bias_JD is None else s_BMJD + bias_JD)
            trace.append({"coupling": coupling_BMJL.mT, "pose": v_BMJD})
            if is_last and not with_trace:
                return make_routed(trace, with_trace)
            agreement_BMJL = formed.compare_votes(v_BMJD)
        trace[-1]["agreement"] = agreement_BMJL.mT
        if is_last:
            return make_routed(trace, with_trace)
        logit_BMJL = logit_BMJL + agreement_BMJL


_route_formed = by_products(reference)


def fast(votes: LocalVotes, *arguments: Any, normaliser: str = "softmax", **options: Any) -> Routed:
    """Route as `reference`, in less time and memory, with its options but for traces.

    Linear votes are never formed (`dynamic_fast`), and their couplings have no gradients. Other
    votes, and those that another normaliser than the softmax divides, are a few images at a time
    (`vote_products`).
    """
    if isinstance(votes, Votes) and normaliser == "softmax":
        return route_linear(votes, *arguments, **options)
    return _route_formed(votes, *arguments, normaliser=normaliser, **options)


def triton_route(
    votes: Votes, *arguments: Any, normaliser: str = "softmax", **options: Any
) -> Routed:
    """Route linear votes on a GPU by `dynamic_triton`, with the options of `fast`.

    Raises ConfigError without triton, and on another device.
    """
    assert normaliser == "softmax"
    if (fault := find_fault_of_kernels(votes.device)) is not None:
        raise ConfigError(
            f"routing.impl=triton cannot run on {votes.device.type} (trainer.accelerator=gpu for a "
            f"GPU, and triton installed): {fault}; set routing.impl=auto, fast or reference"
        )
    from capsweep.model.routing.dynamic_triton import route_by_kernels

    return route_by_kernels(votes, *arguments, **options)


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
        super().__init__(IMPLS, impl)
        self.num_iters, self.none_of_the_above = num_iters, none_of_the_above
        self.gradient, self.normaliser = gradient, normaliser
        bias_JD = torch.full((sizes.parents, sizes.parent_pose), 0.1)
        self.bias_JD = nn.Parameter(bias_JD) if bias else None
        prior_IJ = torch.zeros(sizes.children, sizes.parents)
        self.prior_IJ = nn.Parameter(prior_IJ) if learned_prior else None
        self.votes_kind = Votes if impl == "triton" else None
        if normaliser == "softmax":
            self.coupling_rule = CouplingRule(none_of_the_above=none_of_the_above)
        elif normaliser in DIVIDING:
            self.coupling_rule = CouplingRule("types")

    @property
    def prior_LJ(self) -> Tensor | None:  # noqa: N802 (shape letters)
        """Return the logits that routing begins with; None: zeros."""
        return self.prior_IJ

    def choose_impl(self, votes: LocalVotes) -> str:
        """Return triton for linear votes on a GPU where its kernels run, and fast for others."""
        is_linear = isinstance(votes, Votes) and self.normaliser == "softmax"
        by_kernels = is_linear and votes.device.type == "cuda"
        return "triton" if by_kernels and not find_fault_of_kernels(votes.device) else "fast"


def _check_normaliser(normaliser: str, none_of_the_above: bool, impl: str) -> None:
    if normaliser not in NORMALISERS:
        known = ", ".join(NORMALISERS)
        raise ValueError(f"routing.normaliser must be one of {known}, got {normaliser}")
    cure = "is for a softmax; set routing.normaliser=softmax"
    if none_of_the_above and normaliser != "softmax":
        raise ValueError(f"routing.none_of_the_above=true {cure}")
    if impl == "triton" and normaliser != "softmax":
        raise ValueError(f"routing.impl=triton {cure}")
