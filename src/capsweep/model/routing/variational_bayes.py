"""Variational Bayes routing with diagonal precisions (Ribeiro, Leontidis, Kollias 2020).

Source: "Capsule Routing via Variational Bayes". The votes are modelled as a mixture of Gaussians.
The mixing proportions have a Dirichlet prior (alpha0 = 1), and each parent has a Gaussian-Wishart
prior (m0 = 0, nu0 = D + 1). kappa0 and psi0 are options; both are 1 in the paper.

    R_ij = 1 / (number of parents of child i)
    for t = 0 .. T-1:
        r_ij = R_ij a_i;  R_j = sum_i r_ij + 1e-7;  mu_j = sum_i r_ij V_ij / R_j
        alpha_j = 1 + R_j;  kappa_j = kappa0 + R_j;  nu_j = D + 1 + R_j;  m_j = R_j mu_j / kappa_j
        psi_jd = psi0 + sum_i r_ij (V_ijd - mu_jd)^2 + kappa0 R_j / kappa_j mu_jd^2
        ln pi_j = digamma(alpha_j) - digamma(sum_k alpha_k)
        ln |L_j| = sum_(k < D) digamma((nu_j - k) / 2) + D ln 2 - sum_d ln psi_jd
        b_ij = ln pi_j + [ln |L_j| - D / kappa_j - nu_j sum_d (V_ijd - m_jd)^2 / psi_jd] / 2
        R_ij = exp(b_ij) / (sum of exp(b_ik) over all parents k of child i)
    H_j = [D ln(2 pi e) - ln |L_j|] / 2
    a_j = sigmoid(shift_j - scale_j exp(ln pi_j) H_j / D);   M_j = m_j

The last two lines of the loop are skipped in the last iteration. Here V_ij is the vote of child i
for parent j, a_i the activation of the child, L_j the precision matrix of the parent's Gaussian,
and H_j the entropy of this Gaussian. M_j and a_j are the pose and the activation of the parent.

The algorithm differs from EM routing in two ways. The priors keep the variances of a parent above 0
even if the parent has only one child. The activation follows from the entropy of the Gaussian,
without a temperature.

The published activation is sigmoid(BN(beta_a - exp(ln pi_j) H_j - beta_u)), where BN is a batch
normalisation without parameters. BN removes every constant of a parent, so the published betas have
no effect. BN also makes the result of an image depend on the other images of the batch. We depart
from the paper in these points:

- Instead of BN, each parent type has a learned scale and a learned shift. They start at 1 and 0.
- H is divided by D. The result is the entropy per dimension.
- Poses are not batch-normalised.
- A child is first assigned equally to its parents at all positions. In the paper the first
  assignment is 1 / J at each position.

An iteration costs 4 B M L J D multiplications; the reference keeps about two tensors of the size of
the votes per iteration.

Shape letters: B batch, M parent positions, L children below a position, J parent types at a
position, D parent pose, T iterations.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.vote_products import FormedVotes, VoteMoments, form_votes, make_fast
from capsweep.model.votes import LocalVotes

SMALLEST_MASS = 1e-7  # added to every mass, so that no mass is 0


def reference(
    votes: LocalVotes | FormedVotes,
    num_iters: int,
    scale_J: Tensor,
    shift_J: Tensor,
    kappa: float = 1.0,
    psi: float = 1.0,
    with_trace: bool = False,
) -> Routed:
    """Route votes by variational Bayes, with plain tensor operations.

    Args:
        votes: Votes of the children, with activations.
        num_iters: Number of iterations T, at least 1.
        scale_J: Scale of the activation of each parent type.
        shift_J: Shift of the activation of each parent type.
        kappa: Prior kappa0. Each parent gets kappa0 additional votes with the value 0.
        psi: Prior psi0, added to the sum of squared differences in each dimension.
        with_trace: Whether to return a trace.

    Returns:
        The poses and activations of the M J parents, and the logits of the activations. If there
        is only one position, the result also has the couplings R_ij of the last iteration.

    Raises:
        ValueError: If the votes have no activations.
    """
    formed, trace = form_votes(votes), list[dict[str, Tensor]]()
    activation_BM1L = formed.local_activation()[:, :, None]
    logit_BMJL = formed.zero_BMJL
    while True:
        coupling_BMJL = formed.apply_given(formed.divide_children(logit_BMJL))
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
    """The posterior distribution of the parents, given an assignment of the votes.

    Attributes:
        mean: Mean m, [B, M, J, D].
        psi: Diagonal of the inverse scale matrix of the Wishart distribution, [B, M, J, D].
        nu: Degrees of freedom of the Wishart distribution, [B, M, J].
        log_pi: Expected logarithm of the mixing proportion, ln pi, [B, M, J].
        prior: The routing logits without the term of the squared distances, [B, M, J].
        entropy: H / D, the entropy of the Gaussian per dimension, [B, M, J].
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
    """Compute the posterior from the priors and the statistics of the votes.

    Args:
        kappa: Prior kappa0.
        psi: Prior psi0.
        mass_BMJ: Mass R_j of each parent.
        plain_BMJD: Weighted mean mu_j of the votes.
        spread_BMJD: Weighted sum of the squared differences between the votes and mu_j.
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
    """Compute the expected log determinant ln |L_j| of a Wishart distribution, [B, M, J]."""
    numbers = psi_BMJD.shape[3]
    degree_D = torch.arange(numbers, device=nu_BMJ.device)
    digamma_BMJ = ((nu_BMJ[..., None] - degree_D) / 2).digamma().sum(dim=3)
    return digamma_BMJ + numbers * math.log(2) - psi_BMJD.log().sum(dim=3)


fast = make_fast(reference, VoteMoments)

IMPLS = {"reference": reference, "fast": fast}


class VariationalBayesRouting(RoutingLayer):
    """Variational Bayes routing of one layer, with a learned scale and shift for each parent type.

    Scale and shift determine the activations. They start at 1 and 0.

    Args:
        num_iters: Number of routing iterations.
        kappa: Prior kappa0, 1 in the paper.
        psi: Prior psi0, 1 in the paper.
        impl: Name of an implementation in `IMPLS`, or `auto`.
        sizes: Sizes of the layer.
    """

    coupling_rule = CouplingRule()
    reads_activations = True

    def __init__(
        self, num_iters: int, kappa: float, psi: float, impl: str, *, sizes: LayerSizes
    ) -> None:
        super().__init__(IMPLS, impl)
        self.num_iters, self.kappa, self.psi = num_iters, kappa, psi
        self.scale_J = nn.Parameter(torch.ones(sizes.parents))
        self.shift_J = nn.Parameter(torch.zeros(sizes.parents))
