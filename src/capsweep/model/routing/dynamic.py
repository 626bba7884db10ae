"""Dynamic routing by agreement (Sabour, Frosst, Hinton 2017, procedure 1).

    b_ij = prior_ij                         zero unless learned
    for t = 0 .. T-1:
        c_i. = softmax_j b_i.               each child divides itself among the parents
        s_j  = sum_i c_ij u_hat_ij + bias_j
        v_j  = squash(s_j)
        b_ij = b_ij + u_hat_ij . v_j        skipped after the last iteration

Here u_hat_ij is the vote of child i for parent j, c_ij is the coupling of child and parent, and v_j
is the pose of the parent.

The option `normaliser` chooses the function that turns the logits b_j of a child into couplings:

    softmax     c_j = exp(b_j) / sum_k exp(b_k)
    sigmoid     c_j = 1 / (1 + exp(-b_j))
    max_min     c_j = (b_j - min b) / (max b - min b)       1 if all logits are equal
    sparsemax   c_j = max(b_j - tau, 0)                     projection on the simplex
    entmax      c_j = max(b_j / 2 - tau, 0)^2               alpha = 1.5

In sparsemax and entmax, tau is the number for which the couplings of a child sum to 1. The
couplings of sigmoid and max_min have no fixed sum. If all logits are 0, a coupling is 1 / J with
softmax, 1 / 2 with sigmoid and 1 with max_min. The bounds 0 and 1 of max_min, and its value 1 for
equal logits, are our choice. In max_min, equal logits get no gradient. A learned prior starts with
equal logits, so with max_min and only one iteration the prior never changes.

Sources of the functions:

- sigmoid: LaLonde et al. 2020, "Encoding Visual Attributes in Capsules for Explainable Medical
  Diagnoses";
- max_min: Zhao et al. 2019, "Capsule Networks with Max-Min Normalization";
- sparsemax: Martins and Astudillo 2016;
- entmax: Peters, Niculae and Martins 2019.

With `none_of_the_above` (section 7 of the paper), the softmax has one more logit, which is always
0. This logit belongs to no parent, so the couplings of a child with its parents sum to less than 1.

If a child is below several positions, the softmax divides the child among the parents at all these
positions. The other normalisers divide the child at each position separately.

As in the authors' code, the bias is added in each iteration, and gradients flow through all
iterations. With the option `gradient: last`, gradients flow only through the last weighted sum and
the learned prior. The agreements of the earlier iterations then count as constants.

Forming the votes costs B I J P D multiplications. Each iteration costs 2 B I J D. The memory is the
size of the votes, B I J D numbers.

Shape letters: B batch, I children, J parents (or parent types at a position), P child pose, D
parent pose, T iterations, M parent positions, L children below a position.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from capsweep.errors import ConfigError
from capsweep.model.capsules import find_fault_of_kernels, squash
from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.dynamic_fast import list_inputs, route_linear
from capsweep.model.routing.vote_products import FormedVotes, form_votes, make_fast
from capsweep.model.votes import LocalVotes, Votes


def divide_max_min(logit: Tensor, dim: int) -> Tensor:
    """Map logits along `dim` linearly to 0..1: the smallest to 0, the largest to 1.

    If all logits are equal, all results are 1. Source: Zhao et al. 2019, "Capsule Networks with
    Max-Min Normalization". The bounds and the value for equal logits are our choice.
    """
    # Not aminmax: it has no gradient on CUDA.
    lowest, highest = logit.amin(dim=dim, keepdim=True), logit.amax(dim=dim, keepdim=True)
    span = highest - lowest
    is_spread = span > 0
    return torch.where(is_spread, (logit - lowest) / torch.where(is_spread, span, 1.0), 1.0)


def divide_sparsemax(logit: Tensor, dim: int) -> Tensor:
    """Compute the sparsemax of logits along `dim`.

    The sparsemax is the vector of the probability simplex that has the smallest Euclidean distance
    to the logits. Source: Martins and Astudillo 2016.

    Returns:
        Couplings of the same shape. They are at least 0 and sum to 1 along `dim`.
    """
    logit = logit - logit.detach().amax(dim=dim, keepdim=True)
    support = find_support(logit.detach(), dim, _sparsemax_threshold)
    return (logit - _sparsemax_threshold(*_moments(logit, support, dim))).clamp(min=0) * support


def divide_entmax(logit: Tensor, dim: int) -> Tensor:
    """Compute the 1.5-entmax of logits along `dim`, a function between softmax and sparsemax.

    Source: Peters, Niculae and Martins 2019.

    Returns:
        Couplings of the same shape. They are at least 0 and sum to 1 along `dim`.
    """
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
SHARE_NORMALISERS = ("softmax", "sparsemax", "entmax")  # normalisers whose couplings sum to 1

Threshold = Callable[[Tensor, Tensor, Tensor], Tensor]  # (count, mean, mean square) -> tau


def find_support(logit: Tensor, dim: int, threshold: Threshold) -> Tensor:
    """Find the logits along `dim` whose couplings are above 0.

    For every k, a threshold tau_k is computed from the k largest logits. Let n be the largest k for
    which the k-th largest logit is above tau_k. The couplings of the n largest logits are above 0.

    Args:
        logit: Logits of any shape.
        dim: Axis of the logits of one child.
        threshold: Function that computes tau_k from k, the mean of the k largest logits and the
            mean of their squares.

    Returns:
        A tensor with the shape and type of `logit`: 1 if the coupling is above 0, else 0.
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
    """Return the count of the logits in the support, their mean and the mean of their squares."""
    count = support.sum(dim=dim, keepdim=True)
    chosen = logit * support
    mean, square = (x.sum(dim=dim, keepdim=True) / count for x in (chosen, chosen * logit))
    return count, mean, square


def _sparsemax_threshold(count: Tensor, mean: Tensor, square: Tensor) -> Tensor:
    return mean - 1 / count


def _entmax_threshold(count: Tensor, mean: Tensor, square: Tensor) -> Tensor:
    # For the logits of the support, the number under the root is at least 0. For more logits the
    # number may be negative; it then counts as 0.
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
    """Route votes by agreement (procedure 1), with plain tensor operations.

    Args:
        votes: Votes of the children.
        num_iters: Number of iterations T, at least 1.
        bias_JD: Bias added to the sum of the votes in each iteration. None: no bias.
        prior_LJ: Routing logits before the first iteration. None: 0.
        none_of_the_above: Whether a share of each child may go to no parent (section 7 of the
            paper).
        gradient: "full": gradients flow through all iterations. "last": gradients flow only through
            the last iteration.
        normaliser: Name of the function in `NORMALISERS` that turns logits into couplings.
        with_trace: Whether to return a trace.

    Returns:
        The poses of the M J parents. The activation of a parent is the length of its pose. If there
        is only one position, the result also has the couplings of the last iteration. The trace
        has three tensors per iteration: "coupling" [B, M, L, J], "pose" [B, M, J, D] and
        "agreement" [B, M, L, J]. The agreement is u_hat_ij . v_j; each iteration except the last
        adds it to the logits.
    """
    formed, trace = form_votes(votes), list[dict[str, Tensor]]()
    first_JL = formed.zero_BMJL[:1, :1] if prior_LJ is None else prior_LJ.T
    logit_BMJL = first_JL.expand_as(formed.zero_BMJL)
    while True:
        if normaliser == "softmax":
            coupling_BMJL = formed.divide_children(logit_BMJL, "all", none_of_the_above)
        else:
            coupling_BMJL = NORMALISERS[normaliser](logit_BMJL, 2)
        coupling_BMJL, is_last = formed.apply_given(coupling_BMJL), len(trace) == num_iters - 1
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


_route_formed = make_fast(reference)


def fast(votes: LocalVotes, *arguments: Any, normaliser: str = "softmax", **options: Any) -> Routed:
    """Route votes as `reference` does, in less time and memory and without a trace.

    If the votes are linear and the normaliser is the softmax, `dynamic_fast` routes them and never
    forms the votes. The couplings in the result then carry no gradient. In all other cases
    `vote_products` forms the votes of a few images at a time.

    Args:
        votes: Votes of the children.
        *arguments: Positional arguments of `reference`.
        normaliser: Name of the function in `NORMALISERS` that turns logits into couplings.
        **options: Keyword arguments of `reference`, except `with_trace`.
    """
    if isinstance(votes, Votes) and normaliser == "softmax":
        return route_linear(*list_inputs(votes, *arguments, **options))
    return _route_formed(votes, *arguments, normaliser=normaliser, **options)


def triton_route(
    votes: Votes, *arguments: Any, normaliser: str = "softmax", **options: Any
) -> Routed:
    """Route linear votes on a GPU with the Triton kernels of `dynamic_triton`.

    Args:
        votes: Linear votes on a GPU.
        *arguments: Positional arguments of `reference`.
        normaliser: Must be "softmax".
        **options: Keyword arguments of `reference`, except `with_trace`.

    Raises:
        ConfigError: If the votes are not on a GPU, or if Triton is missing or does not work.
    """
    assert normaliser == "softmax"
    if (fault := find_fault_of_kernels(votes.device)) is not None:
        raise ConfigError(
            f"routing.impl=triton cannot run on {votes.device.type} (it needs trainer."
            f"accelerator=gpu and triton): {fault}; set routing.impl=auto, fast or reference"
        )
    from capsweep.model.routing.dynamic_triton import KernelRouting

    return Routed(*KernelRouting.apply(*list_inputs(votes, *arguments, **options)))


IMPLS = {"reference": reference, "fast": fast, "triton": triton_route}


class DynamicRouting(RoutingLayer):
    """Dynamic routing of one layer, with an optional bias and an optional learned prior.

    The bias [J, D] of the parents starts at 0.1, as in the authors' code. The learned prior [L, J]
    contains the routing logits before the first iteration, which the paper calls log priors
    (equation 3). The prior starts at 0 and is the same for all images.

    Args:
        num_iters: Number of routing iterations.
        bias: Whether the parents have a bias.
        impl: Name of an implementation in `IMPLS`, or `auto`.
        none_of_the_above: Whether a share of each child may go to no parent (section 7 of the
            paper).
        learned_prior: Whether the routing logits before the first iteration are learned.
        gradient: "full": gradients flow through all iterations. "last": gradients flow only through
            the last iteration.
        normaliser: Name of the function in `NORMALISERS` that turns logits into couplings.
        sizes: Sizes of the layer.

    Raises:
        ValueError: If `normaliser` or `impl` has an unknown value, or if `none_of_the_above` or the
            implementation "triton" is combined with another normaliser than the softmax. The
            message names the configuration keys.
    """

    squashes = True

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
        elif normaliser in SHARE_NORMALISERS:
            self.coupling_rule = CouplingRule("types")

    @property
    def prior_LJ(self) -> Tensor | None:  # noqa: N802 (shape letters)
        """The routing logits before the first iteration; None means 0."""
        return self.prior_IJ

    def choose_impl(self, votes: LocalVotes) -> str:
        """Return "triton" if the Triton kernels can route these votes, else "fast".

        The kernels need linear votes, the softmax and a GPU on which Triton works.
        """
        is_linear = isinstance(votes, Votes) and self.normaliser == "softmax"
        by_kernels = is_linear and votes.device.type == "cuda"
        return "triton" if by_kernels and not find_fault_of_kernels(votes.device) else "fast"


def _check_normaliser(normaliser: str, none_of_the_above: bool, impl: str) -> None:
    if normaliser not in NORMALISERS:
        known = ", ".join(NORMALISERS)
        raise ValueError(f"routing.normaliser must be one of {known}, got {normaliser}")
    cure = "works with a softmax only; set routing.normaliser=softmax"
    if none_of_the_above and normaliser != "softmax":
        raise ValueError(f"routing.none_of_the_above=true {cure}")
    if impl == "triton" and normaliser != "softmax":
        raise ValueError(f"routing.impl=triton {cure}")
