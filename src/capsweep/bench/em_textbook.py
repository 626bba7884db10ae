"""EM routing as procedure 1 of "Matrix capsules with EM routing" is printed, line by line.

What a first version does: every intermediate is a tensor of its own, of the size of the votes where
it depends on child, parent and number; densities are densities, not logarithms. A child divides
itself among all its parents, as in `model.routing.em`. It is what the fast path is measured
against, and no variant: densities can underflow.

Shape letters: B batch, M parent positions, K kernel offsets, I child types, L = K I, J parent
types, D parent pose, N child positions.
"""

import math

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
    for iteration in range(num_iters):
        weight_BMLJ1 = assigned_BMLJ[..., None] * present_BML11
        mass_BM1J1 = weight_BMLJ1.sum(dim=2, keepdim=True) + 1e-7
        mean_BM1JD = (weight_BMLJ1 * votes_BMLJD).sum(dim=2, keepdim=True) / mass_BM1J1
        squared_BMLJD = (votes_BMLJD - mean_BM1JD) ** 2
        summed_BM1JD = (weight_BMLJ1 * squared_BMLJD).sum(dim=2, keepdim=True)
        variance_BM1JD = summed_BM1JD / mass_BM1J1 + procedure.floor
        deviation_BM1JD = torch.sqrt(variance_BM1JD)
        cost_BM1JD = (beta_u_J[:, None] + torch.log(deviation_BM1JD)) * mass_BM1J1
        cost_BMJ = cost_BM1JD.sum(dim=4)[:, :, 0]
        logit_BMJ = procedure.temperature(iteration) * (beta_a_J - cost_BMJ)
        activation_BMJ = torch.sigmoid(logit_BMJ)
        if iteration < num_iters - 1:
            exponent_BMLJ = -((votes_BMLJD - mean_BM1JD) ** 2 / (2 * variance_BM1JD)).sum(dim=4)
            volume_BM1J = torch.sqrt(torch.prod(2 * math.pi * variance_BM1JD, dim=4))
            density_BMLJ = torch.exp(exponent_BMLJ) / volume_BM1J
            explained_BMLJ = activation_BMJ[:, :, None] * density_BMLJ
            assigned_BMLJ = explained_BMLJ / _over_parents(votes, explained_BMLJ)
    return Routed(
        pose_BJD=mean_BM1JD[:, :, 0].flatten(1, 2),
        act_BJ=activation_BMJ.flatten(1),
        logit_BJ=logit_BMJ.flatten(1),
    )


def _over_parents(votes: ConvolutionalVotes, value_BMLJ: Tensor) -> Tensor:
    """The sum over all parents of each child, [B, M, L, 1]."""
    types = votes.pose_BNIRS.shape[2]
    value_BMKI = value_BMLJ.sum(dim=3).unflatten(2, (-1, types))
    zeros_BNI = torch.zeros_like(votes.activation_BNI)
    index_E = votes.child_MK.flatten()
    summed_BNI = zeros_BNI.index_add(1, index_E, value_BMKI.flatten(1, 2))
    return summed_BNI[:, votes.child_MK].flatten(2)[..., None]
