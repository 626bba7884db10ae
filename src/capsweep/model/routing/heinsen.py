"""Heinsen routing (Heinsen 2019, "An Algorithm for Routing Capsules in All Domains", algorithm 1).

    R_ij = 1 / J
    for t = 0 .. T-1:
        use_ij = a_i R_ij;  ignore_ij = a_i - use_ij                                    D-step
        z_j   = sum_i beta_use_ij use_ij - sum_i beta_ignore_ij ignore_ij               M-step
        mu_jd = sum_i use_ij V_ijd / m_j;   m_j = sum_i use_ij + 1e-5
        var_jd = sum_i use_ij (V_ijd - mu_jd)^2 / m_j + 1e-5
        R_i. = softmax_j logsigmoid(z_j) - sum_d [(V_ijd - mu_jd)^2 / var_jd + log var_jd] / 2
                                                                   E-step; not after the last
    a_j = sigmoid(z_j)

What sets it apart from EM routing, whose assignment it shares: a parent is activated by the net
benefit of using children less that of ignoring them, with learned prices for each pair, not by a
description length; and there is no temperature.

The paper's children bring logits, of which it takes the sigmoid; ours bring that probability a_i.
Prices are 0 at first, so at first all parents are at 0.5 whatever they see.

Where a child stands below several positions, it divides itself at each anew. An iteration costs 4 B
M L J D multiplications; the reference keeps about two tensors of the size of the votes an
iteration. Prices are 2 L J parameters.

Shape letters: B batch, M parent positions, L children below one, J parent types there, D parent
pose, T iterations.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.vote_products import (
    VoteMoments,
    apply_to_votes,
    compute_log_fit,
    divide_children,
    few_images_at_once,
)
from capsweep.model.votes import LocalVotes, compare_votes, form_parents_first, sum_votes

FLOOR = 1e-5  # of masses and variances


def reference(
    votes: LocalVotes,
    num_iters: int,
    beta_use_LJ: Tensor,
    beta_ignore_LJ: Tensor,
    with_trace: bool = False,
    given_BMLJ: Tensor | None = None,
) -> Routed:
    """Route `votes` in `num_iters` iterations; with a given assignment, by one D- and M-step.
    `Routed` says what is returned and traced.
    """
    votes_BMJLD, activation_BML = form_parents_first(votes), votes.local_activation()
    fit_parents = partial(_fit_parents, votes_BMJLD, activation_BML, beta_use_LJ, beta_ignore_LJ)
    if given_BMLJ is not None:
        return _make_routed(fit_parents(given_BMLJ))
    logit_BMLJ = torch.zeros_like(votes_BMJLD[..., 0]).transpose(2, 3)
    fit = fit_parents(votes.divide_children(logit_BMLJ, "types"))
    trace = [_make_trace_step(fit)]
    for _ in range(num_iters - 1):
        scaled_BMLJ = compare_votes(fit.squared, 1 / fit.variance)
        logit_BMLJ = compute_log_fit(scaled_BMLJ, fit.variance, F.logsigmoid(fit.logit))
        fit = fit_parents(votes.divide_children(logit_BMLJ, "types"))
        trace.append(_make_trace_step(fit))
    return _make_routed(fit, trace if with_trace else None)


class ParentFit(NamedTuple):
    """Of an assignment [B, M, L, J]: z [B, M, J], means and variances [B, M, J, D], and the squared
    differences of the votes from the means [B, M, J, L, D].
    """

    assigned: Tensor
    logit: Tensor
    mean: Tensor
    variance: Tensor
    squared: Tensor


def _fit_parents(
    votes_BMJLD: Tensor,
    activation_BML: Tensor,
    beta_use_LJ: Tensor,
    beta_ignore_LJ: Tensor,
    assigned_BMLJ: Tensor,
) -> ParentFit:
    """Take the D-step and the M-step."""
    leaves = activation_BML, beta_use_LJ.T, beta_ignore_LJ.T
    logit_BMJ, share_BMJL = _use_children(*leaves, assigned_BMLJ.transpose(2, 3))
    share_BMLJ = share_BMJL.transpose(2, 3)
    mean_BMJD = sum_votes(share_BMLJ, votes_BMJLD)
    squared_BMJLD = (votes_BMJLD - mean_BMJD[:, :, :, None]).square()
    variance_BMJD = sum_votes(share_BMLJ, squared_BMJLD) + FLOOR
    return ParentFit(assigned_BMLJ, logit_BMJ, mean_BMJD, variance_BMJD, squared_BMJLD)


def _use_children(
    activation_BML: Tensor, beta_use_JL: Tensor, beta_ignore_JL: Tensor, assigned_BMJL: Tensor
) -> tuple[Tensor, Tensor]:
    """Return z [B, M, J], and by how much each parent weighs each child [B, M, J, L]."""
    activation_BM1L = activation_BML[:, :, None]
    used_BMJL = activation_BM1L * assigned_BMJL
    ignored_BMJL = activation_BM1L - used_BMJL
    logit_BMJ = (beta_use_JL * used_BMJL - beta_ignore_JL * ignored_BMJL).sum(dim=3)
    return logit_BMJ, used_BMJL / (used_BMJL.sum(dim=3, keepdim=True) + FLOOR)


def _make_trace_step(fit: ParentFit) -> dict[str, Tensor]:
    return {"coupling": fit.assigned, "pose": fit.mean, "activation": fit.logit.sigmoid()}


def _make_routed(fit: ParentFit, trace: list[dict[str, Tensor]] | None = None) -> Routed:
    act_BMJ = fit.logit.sigmoid()
    return make_routed(fit.mean, fit.assigned, trace, act_BMJ=act_BMJ, logit_BMJ=fit.logit)


@few_images_at_once
def fast(votes: LocalVotes, num_iters: int, beta_use_LJ: Tensor, beta_ignore_LJ: Tensor) -> Routed:
    """Route as `reference`, in less time and memory (`vote_products`), and without traces."""
    iterations, votes_BMJDL = partial(_run_iterations, votes, num_iters), votes.form_numbers_first()
    leaves = votes.local_activation(), beta_use_LJ.T.contiguous(), beta_ignore_LJ.T.contiguous()
    mean, logit, assigned = apply_to_votes(VoteMoments, iterations, votes_BMJDL, *leaves)
    return make_routed(mean, assigned, act_BMJ=logit.sigmoid(), logit_BMJ=logit)


def _run_iterations(
    votes: LocalVotes,
    num_iters: int,
    moments: VoteMoments,
    activation_BML: Tensor,
    beta_use_JL: Tensor,
    beta_ignore_JL: Tensor,
) -> Sequence[Tensor]:
    """Return means, z and assignment."""
    use_children = partial(_use_children, activation_BML, beta_use_JL, beta_ignore_JL)
    logit_BMLJ = activation_BML.new_zeros(*activation_BML.shape, votes.num_parents)
    iteration = 0
    while True:
        assigned_BMJL = divide_children(votes, logit_BMLJ.transpose(2, 3), "types")
        logit_BMJ, share_BMJL = use_children(assigned_BMJL)
        mean_BMJD, variance_BMJD = moments.fit_gaussians(share_BMJL, FLOOR)
        iteration += 1
        if iteration >= num_iters:
            return mean_BMJD, logit_BMJ, assigned_BMJL.transpose(2, 3)
        scaled_BMLJ = moments.compute_distances(mean_BMJD, variance_BMJD).transpose(2, 3)
        logit_BMLJ = compute_log_fit(scaled_BMLJ, variance_BMJD, F.logsigmoid(logit_BMJ))


IMPLS = {"reference": reference, "fast": fast}


class HeinsenRouting(RoutingLayer):
    """The routing of one layer. Owns the prices of using and of ignoring a child, 0 at first."""

    coupling_rule = CouplingRule("types")
    reads_activations = True

    def __init__(self, num_iters: int, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(
            IMPLS,
            impl,
            num_iters=num_iters,
            beta_use_LJ=nn.Parameter(torch.zeros(sizes.children, sizes.parents)),
            beta_ignore_LJ=nn.Parameter(torch.zeros(sizes.children, sizes.parents)),
        )
