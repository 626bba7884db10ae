"""EM routing, few images at a time, by products with moments of the votes (`vote_products`).

The mathematics is in `em`.

Shape letters: B batch, M parent positions, J parent types, D parent pose, L children below a
position.
"""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from capsweep.model.routing import Routed, join_routed, make_routed
from capsweep.model.routing.em_procedure import (
    PAPER_PROCEDURE,
    SMALLEST_MASS,
    ActivationRule,
    Activations,
    EMProcedure,
    assign_equally,
    compute_log_fit,
)
from capsweep.model.routing.vote_products import VoteMoments, apply_to_votes, divide_children
from capsweep.model.votes import LocalVotes, images_at_once


def fast(
    votes: LocalVotes,
    num_iters: int,
    beta_u_J: Tensor,
    beta_a_J: Tensor,
    *,
    procedure: EMProcedure = PAPER_PROCEDURE,
) -> Routed:
    """The same as `em.reference`, in less time and memory, and without traces.

    Images do not compete: they are routed a few at a time, so that their votes stay in the cache,
    and where no gradient is asked for there are never more.
    """
    parts: list[Routed] = []
    for part in votes.split_images(images_at_once(votes)):
        activation_BML = part.local_activation()
        first_1MLJ = assign_equally(part, activation_BML, procedure)
        iterations = partial(_run_iterations, part, num_iters, first_1MLJ, procedure)
        leaves = activation_BML, beta_u_J, beta_a_J
        mean_BMJD, *activations, assigned_BMLJ = apply_to_votes(
            VoteMoments, iterations, part.form_numbers_first(), *leaves
        )
        act = Activations(*activations)
        parts.append(make_routed(mean_BMJD, act.value, assigned_BMLJ, logit_BMJ=act.logit))
    return join_routed(parts)


def _run_iterations(
    votes: LocalVotes,
    num_iters: int,
    first_1MLJ: Tensor,
    procedure: EMProcedure,
    moments: VoteMoments,
    activation_BML: Tensor,
    beta_u_J: Tensor,
    beta_a_J: Tensor,
) -> Sequence[Tensor]:
    """mean, activation, its logarithm and logit, assignment."""
    usual_BMJ, present_BM = first_1MLJ.sum(dim=2), activation_BML.sum(dim=2)
    description = ActivationRule(procedure, beta_u_J, beta_a_J, usual_BMJ, present_BM)
    assigned_BMJL = first_1MLJ.expand(len(activation_BML), -1, -1, -1).transpose(2, 3)
    iteration = 0
    while True:
        weight_BMJL = assigned_BMJL * activation_BML[:, :, None]
        mass_BMJ = weight_BMJL.sum(dim=3) + SMALLEST_MASS
        share_BMJL = weight_BMJL / mass_BMJ[..., None]
        mean_BMJD, variance_BMJD = moments.fit_gaussians(share_BMJL, procedure.floor)
        activations = description.activate_parents(mass_BMJ, variance_BMJD, iteration)
        iteration += 1
        if iteration >= num_iters:
            return mean_BMJD, *activations, assigned_BMJL.transpose(2, 3)
        scaled_BMLJ = moments.compute_distances(mean_BMJD, variance_BMJD).transpose(2, 3)
        fit_BMLJ = compute_log_fit(scaled_BMLJ, variance_BMJD, activations.log)
        assigned_BMJL = divide_children(votes, fit_BMLJ.transpose(2, 3), procedure.norm)
