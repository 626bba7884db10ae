"""EM routing (Hinton, Sabour, Frosst 2018, "Matrix capsules with EM routing", procedure 1).

Each parent is a Gaussian with a diagonal covariance, fitted to the votes for it; each child divides
itself among the parents above it by how well they explain its vote. H = D numbers a pose.

    R_ij = 1 / (number of parents of child i)
    for t = 0 .. T-1:
        r_ij = R_ij a_i;   m_j = sum_i r_ij + 1e-7                                       M-step
        mu_jh = sum_i r_ij V_ijh / m_j
        var_jh = sum_i r_ij (V_ijh - mu_jh)^2 / m_j + floor
        cost_j = m_j sum_h (beta_u_j + log(var_jh) / 2)
        logit_j = lambda_t (beta_a_j - cost_j);   lambda_t = lambda (1 - 0.95^(t+1))
        R_i. = softmax over all parents j of child i of                                  E-step
               logsigmoid(logit_j) - sum_h [(V_ijh - mu_jh)^2 / var_jh + log(2 pi var_jh)] / 2
    a_j = sigmoid(logit_j);   M_j = mu_j

The last E-step is left out: nothing reads it. Gradients flow through all iterations. lambda grows
with the routing iterations, not with training.

Votes cost as in `votes`; every iteration 4 B M L J D multiplications. The reference keeps about two
tensors of the size of the votes an iteration for the backward pass.

Shape letters: B batch, M parent positions, L children below one, J parent types, D parent pose, T
iterations.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from capsweep.model.routing import (
    CouplingRule,
    LayerSizes,
    Routed,
    choose_impl,
    make_routed,
)
from capsweep.model.routing.em_fast import fast
from capsweep.model.routing.em_procedure import (
    PAPER_PROCEDURE,
    SMALLEST_MASS,
    ActivationRule,
    Activations,
    EMProcedure,
    assign_equally,
    compute_log_fit,
)
from capsweep.model.votes import LocalVotes


def reference(
    votes: LocalVotes,
    num_iters: int,
    beta_u_J: Tensor,
    beta_a_J: Tensor,
    with_trace: bool = False,
    *,
    procedure: EMProcedure = PAPER_PROCEDURE,
    given_BMLJ: Tensor | None = None,
) -> Routed:
    """Route `votes` in `num_iters` iterations (procedure 1); with a given assignment, by the last
    M-step alone.

    Returns the poses and activations of the M J parents, the last assignment where all children
    stand below all parents and, on request, a trace of {"coupling": the assignment [B, M, L, J]
    that entered the M-step, "pose": [B, M, J, D], "activation": [B, M, J], "squared_distance":
    [B, M, L, J] of votes to means, "child_activation": [B, M, L]} per iteration. Raises ValueError
    for votes without child activations.
    """
    votes_BMLJD, activation_BML = votes.form_local(), votes.local_activation()
    assigned_BMLJ = assign_equally(votes, activation_BML, procedure)
    description = ActivationRule(
        procedure, beta_u_J, beta_a_J, assigned_BMLJ.sum(dim=2), activation_BML.sum(dim=2)
    )
    if given_BMLJ is not None:
        fit = _m_step(votes_BMLJD, activation_BML, given_BMLJ, description, num_iters - 1)
        return _make_routed(fit)
    fit = _m_step(votes_BMLJD, activation_BML, assigned_BMLJ, description, 0)
    trace = [_make_trace_step(fit, activation_BML)] if with_trace else None
    for iteration in range(1, num_iters):
        assigned_BMLJ = _e_step(fit, votes, procedure)
        fit = _m_step(votes_BMLJD, activation_BML, assigned_BMLJ, description, iteration)
        if trace is not None:
            trace.append(_make_trace_step(fit, activation_BML))
    return _make_routed(fit, trace)


class GaussianFit(NamedTuple):
    """The Gaussians after an M-step: the assignment [B, M, L, J] that they are of; their mean and
    variance [B, M, J, D]; the squared differences of the votes from the mean [B, M, L, J, D].
    """

    assigned: Tensor
    mean: Tensor
    variance: Tensor
    squared: Tensor
    activations: Activations


def _m_step(
    votes_BMLJD: Tensor,
    activation_BML: Tensor,
    assigned_BMLJ: Tensor,
    description: ActivationRule,
    iteration: int,
) -> GaussianFit:
    weight_BMLJ = assigned_BMLJ * activation_BML[..., None]
    mass_BMJ = weight_BMLJ.sum(dim=2) + SMALLEST_MASS
    share_BMLJ = weight_BMLJ / mass_BMJ[:, :, None]
    mean_BMJD = (share_BMLJ[..., None] * votes_BMLJD).sum(dim=2)
    squared_BMLJD = (votes_BMLJD - mean_BMJD[:, :, None]).square()
    spread_BMJD = (share_BMLJ[..., None] * squared_BMLJD).sum(dim=2)
    variance_BMJD = spread_BMJD + description.procedure.floor
    activations = description.activate_parents(mass_BMJ, variance_BMJD, iteration)
    assigned_BMLJ = assigned_BMLJ.expand_as(weight_BMLJ)
    return GaussianFit(assigned_BMLJ, mean_BMJD, variance_BMJD, squared_BMLJD, activations)


def _make_routed(fit: GaussianFit, trace: list[dict[str, Tensor]] | None = None) -> Routed:
    act = fit.activations
    return make_routed(fit.mean, act.value, fit.assigned, trace, act.logit)


def _make_trace_step(fit: GaussianFit, activation_BML: Tensor) -> dict[str, Tensor]:
    return {
        "coupling": fit.assigned,
        "pose": fit.mean,
        "activation": fit.activations.value,
        "squared_distance": fit.squared.sum(dim=4),
        "child_activation": activation_BML,
    }


def _e_step(fit: GaussianFit, votes: LocalVotes, procedure: EMProcedure) -> Tensor:
    """R [B, M, L, J]."""
    scaled_BMLJ = (fit.squared / fit.variance[:, :, None]).sum(dim=4)
    fit_BMLJ = compute_log_fit(scaled_BMLJ, fit.variance, fit.activations.log)
    return votes.divide_children(fit_BMLJ, procedure.norm)


IMPLS = {"reference": reference, "fast": fast}


class EMRouting(nn.Module):
    """The routing of one layer.

    Owns beta_u and beta_a of every parent type [J]; beta_a is kept in units of beta_a_unit, so that
    an optimiser's step changes it as much as it matters. classes: what is different where the
    parents are the classes and have many more children each: temperature_scale (times lambda),
    beta_u, beta_a. The rest as in `EMProcedure`.
    """

    reads_activations = True

    def __init__(
        self,
        num_iters: int,
        impl: str,
        beta_u: float,
        beta_a: float,
        beta_a_unit: float,
        classes: Mapping[str, float],
        *,
        sizes: LayerSizes,
        **procedure: Any,
    ) -> None:
        super().__init__()
        self.num_iters, self.route = num_iters, choose_impl(IMPLS, impl)
        self.beta_a_unit, self.class_values = beta_a_unit, classes
        self.procedure = EMProcedure(**procedure)
        self.beta_u_J = nn.Parameter(torch.full((sizes.parents,), beta_u))
        self.beta_a_J = nn.Parameter(torch.full((sizes.parents,), beta_a / beta_a_unit))

    def use_class_values(self) -> None:
        """Begin as the routing of class capsules."""
        scale = self.class_values["temperature_scale"]
        temperature = scale * self.procedure.inverse_temperature
        self.procedure = replace(self.procedure, inverse_temperature=temperature)
        nn.init.constant_(self.beta_u_J, self.class_values["beta_u"])
        nn.init.constant_(self.beta_a_J, self.class_values["beta_a"] / self.beta_a_unit)

    @property
    def coupling_rule(self) -> CouplingRule:
        """Among whom a child divides itself."""
        return CouplingRule(self.procedure.norm)

    def forward(self, votes: LocalVotes, with_trace: bool = False) -> Routed:
        """Route the votes of this layer's children; with a trace, by the reference."""
        route = partial(reference, with_trace=True) if with_trace else self.route
        return self._call(route, votes)

    def form_parents(self, votes: LocalVotes, coupling_BMLJ: Tensor) -> Routed:
        """The parents of children that are assigned so."""
        return self._call(partial(reference, given_BMLJ=coupling_BMLJ), votes)

    def _call(self, route: Callable[..., Routed], votes: LocalVotes) -> Routed:
        beta_a_J = self.beta_a_unit * self.beta_a_J
        return route(votes, self.num_iters, self.beta_u_J, beta_a_J, procedure=self.procedure)
