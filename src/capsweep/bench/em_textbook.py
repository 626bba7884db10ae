"""EM routing as procedure 1 of "Matrix capsules with EM routing" is printed, line by line.

What a first version does: every intermediate is a tensor of its own, of the size of the votes where
it depends on child, parent and number; densities are densities, not logarithms. A child divides
itself among all its parents, as in `model.routing.em`. It is what the fast path is measured
against, and no variant: densities can underflow.

Shape letters: B batch, M parent positions, K kernel offsets, I child types, L = K I, J parent
types, D parent pose, N child positions.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from capsweep.model.routing.em_procedure import Procedure
from capsweep.model.votes import ConvolutionalVotes, Routed


def textbook(
    votes: ConvolutionalVotes,
    num_iters: int,
    beta_u_J: Tensor,
    beta_a_J: Tensor,
    with_trace: bool = False,
    *,
    procedure: Procedure,
) -> Routed:
    """Route. Raises ValueError where a trace, or another procedure than the printed one, is asked
    for.
    """
    printed = Procedure(procedure.inverse_temperature, procedure.rate, procedure.floor)
    if with_trace or procedure != printed:
        raise ValueError("the textbook version knows the printed procedure alone, without a trace")
    votes_BMLJD = votes.local()
    present_BML11 = votes.local_activation()[..., None, None]
    ones_BMLJ = torch.ones_like(votes_BMLJD[..., 0])
    assigned_BMLJ = ones_BMLJ / _over_parents(votes, ones_BMLJ)
    betas = beta_u_J, beta_a_J
    found = _m_step(votes_BMLJD, present_BML11, assigned_BMLJ, betas, procedure, 0)
    for iteration in range(1, num_iters):
        assigned_BMLJ = _e_step(votes, votes_BMLJD, found)
        found = _m_step(votes_BMLJD, present_BML11, assigned_BMLJ, betas, procedure, iteration)
    return Routed(
        pose_BJD=found.mean[:, :, 0].flatten(1, 2),
        act_BJ=found.activation.flatten(1),
        logit_BJ=found.logit.flatten(1),
    )


class Parents(NamedTuple):
    """mean and variance [B, M, 1, J, D]; activation and logit [B, M, J]."""

    mean: Tensor
    variance: Tensor
    activation: Tensor
    logit: Tensor


def _m_step(
    votes_BMLJD: Tensor,
    present_BML11: Tensor,
    assigned_BMLJ: Tensor,
    betas: tuple[Tensor, Tensor],
    procedure: Procedure,
    iteration: int,
) -> Parents:
    beta_u_J, beta_a_J = betas
    weight_BMLJ1 = assigned_BMLJ[..., None] * present_BML11
    mass_BM1J1 = weight_BMLJ1.sum(dim=2, keepdim=True) + 1e-7
    mean_BM1JD = (weight_BMLJ1 * votes_BMLJD).sum(dim=2, keepdim=True) / mass_BM1J1
    squared_BMLJD = (votes_BMLJD - mean_BM1JD) ** 2
    summed_BM1JD = (weight_BMLJ1 * squared_BMLJD).sum(dim=2, keepdim=True)
    variance_BM1JD = summed_BM1JD / mass_BM1J1 + procedure.floor
    cost_BM1JD = (beta_u_J[:, None] + torch.log(torch.sqrt(variance_BM1JD))) * mass_BM1J1
    cost_BMJ = cost_BM1JD.sum(dim=4)[:, :, 0]
    logit_BMJ = procedure.temperature(iteration) * (beta_a_J - cost_BMJ)
    return Parents(mean_BM1JD, variance_BM1JD, torch.sigmoid(logit_BMJ), logit_BMJ)


def _e_step(votes: ConvolutionalVotes, votes_BMLJD: Tensor, parents: Parents) -> Tensor:
    scaled_BMLJD = (votes_BMLJD - parents.mean) ** 2 / (2 * parents.variance)
    volume_BM1J = torch.sqrt(torch.prod(2 * math.pi * parents.variance, dim=4))
    density_BMLJ = torch.exp(-scaled_BMLJD.sum(dim=4)) / volume_BM1J
    explained_BMLJ = parents.activation[:, :, None] * density_BMLJ
    return explained_BMLJ / _over_parents(votes, explained_BMLJ)


def _over_parents(votes: ConvolutionalVotes, value_BMLJ: Tensor) -> Tensor:
    """The sum over all parents of each child, [B, M, L, 1]."""
    types = votes.pose_BNIRS.shape[2]
    value_BMKI = value_BMLJ.sum(dim=3).unflatten(2, (-1, types))
    zeros_BNI = torch.zeros_like(votes.activation_BNI)
    index_E = votes.child_MK.flatten()
    summed_BNI = zeros_BNI.index_add(1, index_E, value_BMKI.flatten(1, 2))
    return summed_BNI[:, votes.child_MK].flatten(2)[..., None]
