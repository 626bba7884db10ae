"""Variational Bayes routing (Ribeiro, Leontidis, Kollias 2020, "Capsule Routing via Variational
Bayes"), with diagonal precisions.

Votes are a mixture of Gaussians with a Dirichlet prior on the mixing proportions and a
Gaussian-Wishart prior on each parent: alpha0 = 1, m0 = 0, nu0 = D + 1, and kappa0, psi0 as chosen,
1 in the paper.

    R_ij = 1 / (number of parents of child i)
    for t = 0 .. T-1:
        r_ij = R_ij a_i;  R_j = sum_i r_ij + 1e-7;  mu_j = sum_i r_ij V_ij / R_j
        alpha_j = 1 + R_j;  kappa_j = kappa0 + R_j;  nu_j = D + 1 + R_j;  m_j = R_j mu_j / kappa_j
        psi_jd = psi0 + sum_i r_ij (V_ijd - mu_jd)^2 + kappa0 R_j / kappa_j mu_jd^2
        ln pi_j = digamma(alpha_j) - digamma(sum_k alpha_k)
        ln |L_j| = sum_(k < D) digamma((nu_j - k) / 2) + D ln 2 - sum_d ln psi_jd
        R_i. = softmax over all parents j of child i of                       not after the last
               ln pi_j + [ln |L_j| - D / kappa_j - nu_j sum_d (V_ijd - m_jd)^2 / psi_jd] / 2
    H_j = [D ln(2 pi e) - ln |L_j|] / 2
    a_j = sigmoid(shift_j - scale_j exp(ln pi_j) H_j / D);   M_j = m_j

What sets it apart from EM routing: priors keep variances from vanishing where a parent has one
child, and an activation by the entropy of the Gaussian, without a temperature.

The published activation is sigmoid(BN(beta_a - exp(ln pi_j) H_j - beta_u)), with a batch
normalisation that has no parameters: it takes away every constant of a parent, so that the
published betas do nothing, and makes an image depend on its batch mates. Here scale and shift of
every parent type are learned, 1 and 0 at first, H is that of one dimension, and poses, which are
batch-normalised there, stay as they are: named departures. So is the first assignment where a child
stands below several positions: theirs is 1 / J at each.

An iteration costs 4 B M L J D multiplications; the reference keeps about two tensors of the size of
the votes an iteration.

Shape letters: B batch, M parent positions, L children below one, J parent types there, D parent
pose, T iterations.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.vote_products import (
    FormedVotes,
    VoteMoments,
    by_products,
    form_votes,
)
from capsweep.model.votes import LocalVotes

SMALLEST_MASS = 1e-7


def reference(
    votes: LocalVotes | FormedVotes,
    num_iters: int,
    scale_J: Tensor,
    shift_J: Tensor,
    kappa: float = 1.0,
    psi: float = 1.0,
    with_trace: bool = False,
) -> Routed:
    """Route `votes` in `num_iters` iterations. `Routed` says what is returned and traced."""
    formed, trace = form_votes(votes), list[dict[str, Tensor]]()
    activation_BM1L = formed.local_activation()[:, :, None]
    logit_BMJL = formed.zero_BMJL
    while True:
        coupling_BMJL = formed.settle(formed.divide_children(logit_BMJL))
        weight_BMJL = coupling_BMJL * activation_BM1L
        mass_BMJ = weight_BMJL.sum(dim=3) + SMALLEST_MASS
        mass_BMJ1 = mass_BMJ[..., None]
        plain_BMJD, variance_BMJD = formed.fit_gaussians(weight_BMJL / mass_BMJ1, floor=0.0)
        fit = _add_priors(kappa, psi, mass_BMJ, plain_BMJD, mass_BMJ1 * variance_BMJD)
        trace.append({"coupling": coupling_BMJL.mT, "pose": fit.mean})
        if len(trace) == num_iters:
            logit_BMJ = shift_J - scale_J * fit.log_pi.exp() * fit.entropy
            return make_routed(trace, with_trace, act_BMJ=logit_BMJ.sigmoid(), logit_BMJ=logit_BMJ)
        distance_BMJL = formed.compute_distances(fit.mean, fit.psi)
        logit_BMJL = fit.prior[..., None] - fit.nu[..., None] * distance_BMJL / 2


class Posterior(NamedTuple):
    """Of an assignment, by parent.

    Attributes:
        mean: m [B, M, J, D].
        psi: [B, M, J, D].
        nu: [B, M, J].
        log_pi: ln pi [B, M, J].
        prior: what the softmax is of, without the distances of the votes [B, M, J].
        entropy: H / D [B, M, J].
    """

    mean: Tensor
    psi: Tensor
    nu: Tensor
    log_pi: Tensor
    prior: Tensor
    entropy: Tensor


def _add_priors(
    kappa: float, psi: float, mass_BMJ: Tensor, plain_BMJD: Tensor, spread_BMJD: Tensor
) -> Posterior:
    """Return the posterior, of what the votes alone say: R_j, mu_j, and the weighted sum of squared
    differences.
    """
    numbers, alpha_BMJ = plain_BMJD.shape[3], 1 + mass_BMJ
    kappa_BMJ, nu_BMJ = kappa + mass_BMJ, numbers + 1 + mass_BMJ
    pulled_BMJD = (kappa * mass_BMJ / kappa_BMJ)[..., None] * plain_BMJD.square()
    psi_BMJD = psi + spread_BMJD + pulled_BMJD
    mean_BMJD = (mass_BMJ / kappa_BMJ)[..., None] * plain_BMJD
    log_pi_BMJ = alpha_BMJ.digamma() - alpha_BMJ.sum(dim=2, keepdim=True).digamma()
    log_precision_BMJ = _expect_log_precision(nu_BMJ, psi_BMJD)
    prior_BMJ = log_pi_BMJ + (log_precision_BMJ - numbers / kappa_BMJ) / 2
    entropy_BMJ = (math.log(2 * math.pi * math.e) - log_precision_BMJ / numbers) / 2
    return Posterior(mean_BMJD, psi_BMJD, nu_BMJ, log_pi_BMJ, prior_BMJ, entropy_BMJ)


def _expect_log_precision(nu_BMJ: Tensor, psi_BMJD: Tensor) -> Tensor:
    """Return ln |L_j|, of a Wishart distribution with nu degrees of freedom."""
    numbers = psi_BMJD.shape[3]
    degree_D = torch.arange(numbers, device=nu_BMJ.device)
    digamma_BMJ = ((nu_BMJ[..., None] - degree_D) / 2).digamma().sum(dim=3)
    return digamma_BMJ + numbers * math.log(2) - psi_BMJD.log().sum(dim=3)


fast = by_products(reference, VoteMoments)

IMPLS = {"reference": reference, "fast": fast}


class VariationalBayesRouting(RoutingLayer):
    """The routing of one layer. Owns scale and shift of the activation of every parent type."""

    coupling_rule = CouplingRule()
    reads_activations = True

    def __init__(
        self, num_iters: int, kappa: float, psi: float, impl: str, *, sizes: LayerSizes
    ) -> None:
        super().__init__(IMPLS, impl)
        self.num_iters, self.kappa, self.psi = num_iters, kappa, psi
        self.scale_J = nn.Parameter(torch.ones(sizes.parents))
        self.shift_J = nn.Parameter(torch.zeros(sizes.parents))
