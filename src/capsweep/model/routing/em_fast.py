"""EM routing, few images at a time, all products with the votes as products of matrices.

The mathematics is in `em`, and in `em_moments` what it becomes here.

Shape letters: B batch, M parent positions, L children below one, J parent types, D parent pose.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from capsweep.model.routing.em_moments import Statistics, differentiated
from capsweep.model.routing.em_procedure import (
    PROCEDURE,
    SMALLEST_MASS,
    Activations,
    Description,
    Fit,
    Procedure,
    check_iterations,
    first_assignment,
    log_fit,
    routed,
    traced,
)
from capsweep.model.votes import LocalVotes, Routed, images_at_once, joined


def fast(
    votes: LocalVotes,
    num_iters: int,
    beta_u_J: Tensor,
    beta_a_J: Tensor,
    with_trace: bool = False,
    *,
    procedure: Procedure = PROCEDURE,
) -> Routed:
    """The same as `em.reference`, in less time and memory.

    Images do not compete: they are routed a few at a time, so that their votes stay in the cache,
    and where no gradient is asked for there are never more. The trace and the last assignment have
    no gradients.
    """
    check_iterations(num_iters)
    parts: list[Routed] = []
    for some in votes.split(images_at_once(votes)):
        activation_BML = some.local_activation()
        first_1MLJ = first_assignment(some, activation_BML, procedure)
        iterations = _Iterations(some, num_iters, first_1MLJ, procedure, with_trace)
        leaves = activation_BML, beta_u_J, beta_a_J
        mean_BMJD, *activations, assigned_BMLJ = differentiated(
            iterations, some.by_number(), *leaves
        )
        trace = iterations.trace if with_trace else None
        parts.append(routed(mean_BMJD, Activations(*activations), assigned_BMLJ, trace))
    return joined(parts)


@dataclass
class _Iterations:
    """All iterations for some images: a function of their statistics, activations and betas."""

    votes: LocalVotes
    num_iters: int
    first_1MLJ: Tensor
    procedure: Procedure
    with_trace: bool
    trace: list[dict[str, Tensor]] = field(default_factory=list)

    def __call__(self, statistics: Statistics, *leaves: Tensor) -> Sequence[Tensor]:
        """mean, activation, its logarithm and logit, assignment."""
        activation_BML, beta_u_J, beta_a_J = leaves
        present_BM = activation_BML.sum(dim=2)
        usual_BMJ = self.first_1MLJ.sum(dim=2)
        description = Description(self.procedure, beta_u_J, beta_a_J, usual_BMJ, present_BM)
        assigned_BMLJ = self.first_1MLJ.expand(len(activation_BML), -1, -1, -1)
        iteration = 0
        while True:
            weight_BMJL = assigned_BMLJ.transpose(2, 3) * activation_BML[:, :, None]
            mass_BMJ = weight_BMJL.sum(dim=3) + SMALLEST_MASS
            gaussians = statistics.moments(weight_BMJL / mass_BMJ[..., None], self.procedure.floor)
            mean_BMJD, variance_BMJD, shift_ED = gaussians
            activations = description.activations(mass_BMJ, variance_BMJD, iteration)
            if self.with_trace:
                squared_BMLJD = statistics.squared(shift_ED)
                fit = Fit(assigned_BMLJ, mean_BMJD, variance_BMJD, squared_BMLJD, activations)
                self._keep(traced(fit, activation_BML))
            iteration += 1
            if iteration == self.num_iters:
                return mean_BMJD, *activations, assigned_BMLJ
            scaled_BMLJ = statistics.scaled(shift_ED, variance_BMJD).transpose(2, 3)
            fit_BMLJ = log_fit(scaled_BMLJ, variance_BMJD, activations.log)
            assigned_BMLJ = self.votes.divided(fit_BMLJ, self.procedure.norm)

    def _keep(self, step: dict[str, Tensor]) -> None:
        self.trace.append({key: tensor.detach() for key, tensor in step.items()})
