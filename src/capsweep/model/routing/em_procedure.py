"""The options of EM routing, and how its Gaussians become activations and shares of children.

Shape letters: B batch, M parent positions, L children below one, J parent types, D parent pose.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

from capsweep.model.votes import LocalVotes

SMALLEST_MASS = 1e-7


@dataclass(frozen=True)
class EMProcedure:
    """What can be varied of the procedure.

    inverse_temperature: lambda after infinitely many iterations; its rate: 0.95 above. floor: added
    to every variance. norm: among which parents a child divides itself: `coupling_softmax`. r0:
    first assignment; all: equally among all parents of a child; types: among the types at each
    position. mass_norm: how heavy the cost weighs; sum: by the assigned data m_j; ratio: by m_j
    over what it would be if all children were active and equally divided. activation; cost: by the
    description length, as above; mixing: the share of the active children below a parent that is
    assigned to it, a mixing proportion.
    """

    inverse_temperature: float = 0.01
    rate: float = 0.95
    floor: float = 5e-4
    norm: str = "all"
    r0: str = "all"
    mass_norm: str = "sum"
    activation: str = "cost"

    def inverse_temperature_at(self, iteration: int) -> float:
        """lambda_t, the inverse temperature."""
        return self.inverse_temperature * (1 - self.rate ** (iteration + 1))


PAPER_PROCEDURE = EMProcedure()


@dataclass(frozen=True)
class ActivationRule:
    """What turns Gaussians into activations: beta_u_J and beta_a_J of every type; usual_BMJ, the
    mass of a parent if all its children were active and equally divided; present_BM, the summed
    activations below a position.
    """

    procedure: EMProcedure
    beta_u_J: Tensor
    beta_a_J: Tensor
    usual_BMJ: Tensor
    present_BM: Tensor

    def activate_parents(
        self, mass_BMJ: Tensor, variance_BMJD: Tensor, iteration: int
    ) -> "Activations":
        """Of the parents, by the rule of the procedure."""
        if self.procedure.activation == "mixing":
            # Nobody present: all types are equally likely.
            all_BM1 = self.present_BM[..., None] + SMALLEST_MASS * mass_BMJ.shape[2]
            log_BMJ = (mass_BMJ / all_BM1).log()
            return Activations(log_BMJ.exp(), log_BMJ, log_BMJ)
        heavy_BMJ = mass_BMJ
        if self.procedure.mass_norm == "ratio":
            heavy_BMJ = mass_BMJ / self.usual_BMJ
        numbers = variance_BMJD.shape[3]
        described_BMJ = numbers * self.beta_u_J + 0.5 * variance_BMJD.log().sum(dim=3)
        logit_BMJ = self.procedure.inverse_temperature_at(iteration) * (
            self.beta_a_J - heavy_BMJ * described_BMJ
        )
        return Activations(logit_BMJ.sigmoid(), F.logsigmoid(logit_BMJ), logit_BMJ)


class Activations(NamedTuple):
    """Of the parents, [B, M, J]: the activation, its logarithm, and the logit that it is of."""

    value: Tensor
    log: Tensor
    logit: Tensor


def assign_equally(votes: LocalVotes, activation_BML: Tensor, procedure: EMProcedure) -> Tensor:
    """R [1, M, L, J] before the first iteration: equal shares."""
    _, positions, children = activation_BML.shape
    equal_1MLJ = activation_BML.new_zeros(1, positions, children, votes.num_parents)
    return votes.divide_children(equal_1MLJ, procedure.r0)


def compute_log_fit(
    scaled_BMLJ: Tensor, variance_BMJD: Tensor, log_activation_BMJ: Tensor
) -> Tensor:
    """log a_j + log p_j(V_ij) [B, M, L, J]; scaled: the squared distances in units of variance."""
    numbers = variance_BMJD.shape[3]
    volume_BMJ = variance_BMJD.log().sum(dim=3) + numbers * math.log(2 * math.pi)
    return (log_activation_BMJ - 0.5 * volume_BMJ)[:, :, None] - 0.5 * scaled_BMLJ
