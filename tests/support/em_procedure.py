"""Procedure 1 of "Matrix capsules with EM routing", written out one scalar at a time.

Parents are listed for each child by looking through positions, kernel offsets and types.

Shape letters: N child positions, I child types, J parent types, M parent positions, L children
below a position, D parent pose, B batch.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from routing_layers import Layer
from torch import Tensor

from capsweep.model.routing.em import EMProcedure
from capsweep.model.votes import ConvolutionalVotes

Child = tuple[int, int]  # position, type
Parent = tuple[int, int]  # position, type
Pair = tuple[Child, Parent]


class Iteration(NamedTuple):
    """What one iteration found, for one item, by child and parent and by parent."""

    assigned: Mapping[Pair, float]
    mean: Mapping[Parent, list[float]]
    variance: Mapping[Parent, list[float]]
    activation: Mapping[Parent, float]


def list_pairs(votes: ConvolutionalVotes) -> dict[tuple[int, int, int], Pair]:
    """By place among the local votes [M, L, J]: child and parent."""
    (positions, offsets), child_types = votes.child_MK.shape, votes.pose_BNIRS.shape[2]
    return {
        (m, local, j): ((int(votes.child_MK[m, local // child_types]), local % child_types), (m, j))
        for m, local, j in np.ndindex(positions, offsets * child_types, votes.num_parents)
    }


def em_procedure(
    item: int, given: Layer, procedure: EMProcedure, num_iters: int
) -> list[Iteration]:
    """Procedure 1 for one item of the batch, with the options of `EMProcedure`."""
    assert isinstance(given.votes, ConvolutionalVotes)
    votes_MLJD = given.votes.form_local()[item]
    votes = {pair: votes_MLJD[place].tolist() for place, pair in list_pairs(given.votes).items()}
    present_NI = given.votes.activation_BNI[item].detach().numpy()
    present = {child: float(active) for child, active in np.ndenumerate(present_NI)}
    rivals = {pair: _list_rivals(pair, votes, procedure.norm) for pair in votes}
    first = {pair: 1 / len(_list_rivals(pair, votes, procedure.r0)) for pair in votes}
    assigned, iterations = first, []
    for t in range(num_iters):
        step = _m_step(t, given.own, votes, present, assigned, first, procedure)
        iterations.append(step)
        likely = {
            (child, parent): math.log(step.activation[parent])
            - sum(
                (v - mu) ** 2 / (2 * var) + 0.5 * math.log(2 * math.pi * var)
                for v, mu, var in zip(vote, step.mean[parent], step.variance[parent], strict=True)
            )
            for (child, parent), vote in votes.items()
        }
        # Of each pair against the likeliest of its rivals, so that no exponential is too large.
        best = {pair: max(likely[rival] for rival in rivals[pair]) for pair in votes}
        assigned = {
            pair: math.exp(likely[pair] - best[pair])
            / sum(math.exp(likely[rival] - best[pair]) for rival in rivals[pair])
            for pair in votes
        }
    return iterations


def _list_rivals(pair: Pair, votes: Mapping[Pair, list[float]], norm: str) -> list[Pair]:
    """The child with each of the parents among which it divides itself, this one included."""
    child, (position, kind) = pair
    mine = [(one, parent) for one, parent in votes if one == child]
    places = {parent[0] for _, parent in votes}
    if norm == "types" or len(places) == 1:
        return [(one, parent) for one, parent in mine if parent[0] == position]
    if norm == "positions":
        return [(one, parent) for one, parent in mine if parent[1] == kind]
    return mine


def _m_step(
    t: int,
    betas: Mapping[str, Tensor],
    votes: Mapping[Pair, list[float]],
    present: Mapping[Child, float],
    assigned: Mapping[Pair, float],
    first: Mapping[Pair, float],
    procedure: EMProcedure,
) -> Iteration:
    temperature = procedure.inverse_temperature * (1 - procedure.rate ** (t + 1))
    mean, variance, activation = {}, {}, {}
    for parent in sorted({parent for _, parent in votes}):
        below = [child for child, one in votes if one == parent]
        r = {child: assigned[child, parent] * present[child] for child in below}
        mass = sum(r.values()) + 1e-7
        size = range(len(votes[below[0], parent]))
        mu = [sum(r[c] * votes[c, parent][h] for c in below) / mass for h in size]
        var = [
            sum(r[c] * (votes[c, parent][h] - mu[h]) ** 2 for c in below) / mass + procedure.floor
            for h in size
        ]
        mean[parent], variance[parent] = mu, var
        if procedure.activation == "mixing":
            everybody = sum(present[child] for child in below) + 1e-7 * len(betas["beta_u_J"])
            activation[parent] = mass / everybody
            continue
        if procedure.mass_norm == "ratio":
            mass /= sum(first[child, parent] for child in below)
        beta_u, beta_a = (betas[name][parent[1]].item() for name in ("beta_u_J", "beta_a_J"))
        cost = mass * sum(beta_u + 0.5 * math.log(v) for v in var)
        activation[parent] = 1 / (1 + math.exp(-temperature * (beta_a - cost)))
    return Iteration(assigned, mean, variance, activation)
