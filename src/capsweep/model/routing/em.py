"""EM routing (Hinton, Sabour, Frosst 2018, "Matrix capsules with EM routing", procedure 1).

Each parent is a Gaussian with a diagonal covariance. The Gaussian is fitted to the votes for this
parent. Each child is divided among the parents above it; a parent that explains the child's vote
better gets a larger share. The index h runs over the D numbers of a pose.

    R_ij = 1 / (number of parents of child i)
    for t = 0 .. T-1:
        r_ij = R_ij a_i;   m_j = sum_i r_ij + 1e-7                                       M-step
        mu_jh = sum_i r_ij V_ijh / m_j
        var_jh = sum_i r_ij (V_ijh - mu_jh)^2 / m_j + floor
        cost_j = m_j sum_h (beta_u_j + log(var_jh) / 2)
        logit_j = lambda_t (beta_a_j - cost_j);   lambda_t = lambda (1 - 0.95^(t+1))
        fit_ij = logsigmoid(logit_j)                                                     E-step
                 - sum_h [(V_ijh - mu_jh)^2 / var_jh + log(2 pi var_jh)] / 2
        R_ij = exp(fit_ij) / (sum of exp(fit_ik) over all parents k of child i)
    a_j = sigmoid(logit_j);   M_j = mu_j

Here V_ij is the vote of child i for parent j, a_i the activation of the child, M_j the pose of the
parent, and a_j the activation of the parent.

The last E-step is left out, because nothing reads its result. Gradients flow through all
iterations. lambda_t depends on the routing iteration t and does not change during training.

Each iteration costs 4 B M L J D multiplications, in addition to the cost of forming the votes. The
reference keeps about two tensors of the size of the votes per iteration for the backward pass.

Shape letters: B batch, M parent positions, L children below a position, J parent types, D parent
pose, T iterations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.vote_products import FormedVotes, VoteMoments, form_votes, make_fast
from capsweep.model.votes import LocalVotes

SMALLEST_MASS = 1e-7  # added to every mass, so that no mass is 0


@dataclass(frozen=True)
class EMProcedure:
    """The options of EM routing.

    The symbols, such as m_j, are those of the formulas at the top of this module.

    Attributes:
        inverse_temperature: lambda, the limit of lambda_t after infinitely many iterations.
        rate: Base of the power in lambda_t = lambda (1 - rate^(t+1)). 0.95 in the authors' code.
        floor: Number added to every variance.
        norm: The parents among which a child is divided. "all": all types at all positions above
            the child. "types": all types at one position, separately for each position above the
            child. "positions": one type at all positions above the child, separately for each type.
        r0: The first assignment R_ij. "all": a child is divided equally among all its parents.
            "types": a child is divided equally among the types at each position.
        mass_norm: The factor before sum_h in cost_j. Option "sum": m_j. Option "ratio": m_j divided
            by its value if all children are active and have their first assignment.
        activation: How a_j is computed. "cost": a_j = sigmoid(logit_j). "mixing": a_j is the mixing
            proportion, which is m_j divided by the sum of the activations of the children below
            the position.
    """

    inverse_temperature: float = 0.01
    rate: float = 0.95
    floor: float = 5e-4
    norm: str = "all"
    r0: str = "all"
    mass_norm: str = "sum"
    activation: str = "cost"

    def compute_logit(
        self, beta_u_J: Tensor, beta_a_J: Tensor, mass_BMJ: Tensor, variance_BMJD: Tensor, t: int
    ) -> Tensor:
        """Compute the logits [B, M, J] of the activations from the costs of the parents.

        Args:
            beta_u_J: beta_u of each parent type, a constant in the cost.
            beta_a_J: beta_a of each parent type, the cost at which the activation is 1/2.
            mass_BMJ: Factor before sum_h in the cost.
            variance_BMJD: Variances of the parents.
            t: Index of the iteration, from 0.
        """
        volume_BMJ = 0.5 * variance_BMJD.log().sum(dim=3)
        described_BMJ = variance_BMJD.shape[3] * beta_u_J + volume_BMJ
        temperature = self.inverse_temperature * (1 - self.rate ** (t + 1))
        return temperature * (beta_a_J - mass_BMJ * described_BMJ)


PAPER_PROCEDURE = EMProcedure()


def reference(
    votes: LocalVotes | FormedVotes,
    num_iters: int,
    beta_u_J: Tensor,
    beta_a_J: Tensor,
    procedure: EMProcedure = PAPER_PROCEDURE,
    with_trace: bool = False,
) -> Routed:
    """Route votes by EM (procedure 1), with plain tensor operations.

    Args:
        votes: Votes of the children, with activations.
        num_iters: Number of iterations T, at least 1.
        beta_u_J: beta_u of each parent type, a constant in the cost.
        beta_a_J: beta_a of each parent type, the cost at which the activation is 1/2.
        procedure: Options of the procedure.
        with_trace: Whether to return a trace.

    Returns:
        The poses and activations of the M J parents, and the logits of the activations. If there
        is only one position, the result also has the last assignment. The trace has five tensors
        per iteration:

        - "coupling" [B, M, L, J], the assignment R_ij that the M-step reads;
        - "pose" [B, M, J, D];
        - "activation" [B, M, J];
        - "squared_distance" [B, M, L, J] between votes and means;
        - "child_activation" [B, M, L].

    Raises:
        ValueError: If the votes have no activations.
    """
    formed, trace = form_votes(votes), list[dict[str, Tensor]]()
    activation_BML = formed.local_activation()
    first_1MLJ = formed.votes.divide_children(formed.zero_BMJL.mT[:1], procedure.r0)
    usual_BMJ, present_BM1 = first_1MLJ.sum(dim=2), activation_BML.sum(dim=2)[..., None]
    betas_J = beta_u_J, beta_a_J
    assigned_BMJL = formed.apply_given(first_1MLJ.mT.expand_as(formed.zero_BMJL))
    while True:
        weight_BMJL = assigned_BMJL * activation_BML[:, :, None]  # M-step
        mass_BMJ = weight_BMJL.sum(dim=3) + SMALLEST_MASS
        share_BMJL = weight_BMJL / mass_BMJ[..., None]
        mean_BMJD, variance_BMJD = formed.fit_gaussians(share_BMJL, procedure.floor)
        if procedure.activation == "mixing":  # no child is active: all types are equally likely
            logit_BMJ = (mass_BMJ / (present_BM1 + SMALLEST_MASS * mass_BMJ.shape[2])).log()
            act_BMJ, log_act_BMJ = logit_BMJ.exp(), logit_BMJ
        else:
            heavy_BMJ = mass_BMJ / usual_BMJ if procedure.mass_norm == "ratio" else mass_BMJ
            logit_BMJ = procedure.compute_logit(*betas_J, heavy_BMJ, variance_BMJD, len(trace))
            act_BMJ, log_act_BMJ = logit_BMJ.sigmoid(), F.logsigmoid(logit_BMJ)
        step = {"coupling": assigned_BMJL.mT, "pose": mean_BMJD, "activation": act_BMJ}
        if with_trace:
            squared_BMJL = formed.compute_distances(mean_BMJD, torch.ones_like(mean_BMJD))
            step |= {"squared_distance": squared_BMJL.mT, "child_activation": activation_BML}
        trace.append(step)
        if len(trace) == num_iters:
            return make_routed(trace, with_trace, act_BMJ=act_BMJ, logit_BMJ=logit_BMJ)
        fit_BMJL = formed.compute_log_fit(mean_BMJD, variance_BMJD, log_act_BMJ)  # E-step
        assigned_BMJL = formed.apply_given(formed.divide_children(fit_BMJL, procedure.norm))


fast = make_fast(reference, VoteMoments)

IMPLS = {"reference": reference, "fast": fast}


class EMRouting(RoutingLayer):
    """EM routing of one layer, with a learned beta_u and a learned beta_a for each parent type.

    The parameter is beta_a / `beta_a_unit` instead of beta_a, so that a step of the optimiser
    changes beta_a by a useful amount.

    Args:
        num_iters: Number of routing iterations.
        impl: Name of an implementation in `IMPLS`, or `auto`.
        beta_u: Initial value of beta_u.
        beta_a: Initial value of beta_a.
        beta_a_unit: Number by which the learned parameter is multiplied to get beta_a.
        classes: Values for the layer of class capsules, because a class capsule has many more
            children than other parents. `beta_u` and `beta_a` replace the arguments of these names.
            `temperature_scale` is a factor of lambda.
        sizes: Sizes of the layer.
        **options: Fields of `EMProcedure`.
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
        **options: Any,
    ) -> None:
        procedure = EMProcedure(**options)
        if sizes.of_classes:
            beta_u, beta_a = classes["beta_u"], classes["beta_a"]
            temperature = classes["temperature_scale"] * procedure.inverse_temperature
            procedure = replace(procedure, inverse_temperature=temperature)
        super().__init__(IMPLS, impl)
        self.num_iters, self.procedure = num_iters, procedure
        self.beta_u_J = nn.Parameter(torch.full((sizes.parents,), beta_u))
        self.beta_a_J = nn.Parameter(torch.full((sizes.parents,), beta_a / beta_a_unit))
        self.beta_a_unit, self.coupling_rule = beta_a_unit, CouplingRule(procedure.norm)

    def get_arguments(self) -> dict[str, Any]:
        """Return the arguments of the implementations, with beta_a computed from the parameter."""
        return {**super().get_arguments(), "beta_a_J": self.beta_a_unit * self.beta_a_J}
