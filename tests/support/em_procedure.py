"""Procedure 1 of "Matrix capsules with EM routing", written out one scalar at a time, and layers to
route.

Parents are listed for each child by looking through positions, kernel offsets and types.

Shape letters: N child positions (rows and columns of a grid), I child types, J parent types, M
parent positions, K kernel offsets, R S rows and columns of a pose, D = R S, B batch.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from capsweep.model.routing.em import EMProcedure
from capsweep.model.votes import ConvolutionalVotes

Child = tuple[int, int]  # position, type
Parent = tuple[int, int]  # position, type


class Grid(NamedTuple):
    """A grid of child positions, and the kernels above it."""

    rows: int
    columns: int
    kernel: int
    stride: int

    @property
    def parents(self) -> list[tuple[int, int]]:
        """Row and column of the first child below each parent position."""
        rows = range(0, self.rows - self.kernel + 1, self.stride)
        columns = range(0, self.columns - self.kernel + 1, self.stride)
        return [(row, column) for row in rows for column in columns]

    def offset(self, parent: int, child: int) -> int | None:
        """At which kernel offset of a parent position a child position stands, if below it."""
        top, left = self.parents[parent]
        down, right = child // self.columns - top, child % self.columns - left
        if 0 <= down < self.kernel and 0 <= right < self.kernel:
            return down * self.kernel + right
        return None


class Layer(NamedTuple):
    """The input of one convolutional layer and its betas, in float64."""

    grid: Grid
    pose_BNIRS: Tensor
    activation_BNI: Tensor
    weight_KIJSS: Tensor
    offset_KD: Tensor | None
    beta_u_J: Tensor
    beta_a_J: Tensor

    def below(self) -> Tensor:
        """[M, K]: the child position at each kernel offset of each parent position."""
        kernel, columns = self.grid.kernel, self.grid.columns
        return torch.tensor(
            [
                [(y + dy) * columns + x + dx for dy in range(kernel) for dx in range(kernel)]
                for y, x in self.grid.parents
            ]
        )

    @property
    def votes(self) -> ConvolutionalVotes:
        """Of the children for the parents."""
        return ConvolutionalVotes(
            self.pose_BNIRS, self.activation_BNI, self.weight_KIJSS, self.below(), self.offset_KD
        )


def layer(grid: Grid, child_types: int, parent_types: int, with_offset: bool = False) -> Layer:
    """Standard normal poses, activations between 0 and 1; betas that leave parents undecided when
    the inverse temperature is about 1.
    """
    generator = torch.Generator().manual_seed(sum(grid) + child_types + parent_types)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    positions, offsets = grid.rows * grid.columns, grid.kernel**2
    return Layer(
        grid,
        normal(2, positions, child_types, 2, 2),
        normal(2, positions, child_types).sigmoid(),
        normal(offsets, child_types, parent_types, 2, 2),
        0.5 * normal(offsets, 4) if with_offset else None,
        0.1 * normal(parent_types),
        normal(parent_types),
    )


class Iteration(NamedTuple):
    """What one iteration found, for one item, by child and parent and by parent."""

    assigned: Mapping[tuple[Child, Parent], float]
    mean: Mapping[Parent, list[float]]
    variance: Mapping[Parent, list[float]]
    activation: Mapping[Parent, float]


def em_procedure(
    item: int, given: Layer, procedure: EMProcedure, num_iters: int
) -> list[Iteration]:
    """Procedure 1 for one item of the batch, with the options of `EMProcedure`."""
    votes = _votes(item, given)
    present = {(n, i): float(a) for (n, i), a in np.ndenumerate(given.activation_BNI[item].numpy())}
    rivals = {pair: _rivals(pair, votes, procedure.norm) for pair in votes}
    first = {pair: 1 / len(_rivals(pair, votes, procedure.r0)) for pair in votes}
    assigned, found = first, []
    for t in range(num_iters):
        step = _m_step(t, given, votes, present, assigned, first, procedure)
        found.append(step)
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
    return found


def _votes(item: int, given: Layer) -> dict[tuple[Child, Parent], list[float]]:
    """M W, pose on the left, of each child for each parent above it."""
    pose, weight = given.pose_BNIRS[item].numpy(), given.weight_KIJSS.numpy()
    (positions, child_types, rows, _), parent_types = pose.shape, weight.shape[2]
    votes = {}
    for m in range(len(given.grid.parents)):
        for n in range(positions):
            k = given.grid.offset(m, n)
            if k is None:
                continue
            for i in range(child_types):
                for j in range(parent_types):
                    vote, matrix = [], weight[k % len(weight), i, j]
                    for r in range(rows):
                        for s in range(weight.shape[4]):
                            inner = range(weight.shape[3])
                            vote.append(sum(pose[n, i, r, q] * matrix[q, s] for q in inner))
                    if given.offset_KD is not None:
                        vote = [v + float(o) for v, o in zip(vote, given.offset_KD[k], strict=True)]
                    votes[(n, i), (m, j)] = vote
    return votes


def _rivals(
    pair: tuple[Child, Parent], votes: Mapping[tuple[Child, Parent], list[float]], norm: str
) -> list[tuple[Child, Parent]]:
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
    given: Layer,
    votes: Mapping[tuple[Child, Parent], list[float]],
    present: Mapping[Child, float],
    assigned: Mapping[tuple[Child, Parent], float],
    first: Mapping[tuple[Child, Parent], float],
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
            everybody = sum(present[child] for child in below) + 1e-7 * len(given.beta_u_J)
            activation[parent] = mass / everybody
            continue
        if procedure.mass_norm == "ratio":
            mass /= sum(first[child, parent] for child in below)
        beta_u, beta_a = float(given.beta_u_J[parent[1]]), float(given.beta_a_J[parent[1]])
        cost = mass * sum(beta_u + 0.5 * math.log(v) for v in var)
        activation[parent] = 1 / (1 + math.exp(-temperature * (beta_a - cost)))
    return Iteration(assigned, mean, variance, activation)


def assert_as_written_out(
    trace: list[dict[str, Tensor]], item: int, given: Layer, expected: list[Iteration]
) -> None:
    """Every iteration of a router's trace equals that of `em_procedure`, but for rounding."""
    child_types, child_MK = given.pose_BNIRS.shape[2], given.below()
    for found, iteration in zip(trace, expected, strict=True):
        coupling_BMLJ = found["coupling"].expand(len(given.pose_BNIRS), -1, -1, -1)
        for (m, position, j), _ in np.ndenumerate(coupling_BMLJ[item].numpy()):
            k, i = divmod(position, child_types)
            child = (int(child_MK[m, k]), i)
            wanted = iteration.assigned[child, (m, j)]
            assert abs(float(coupling_BMLJ[item, m, position, j]) - wanted) < 1e-10
        for (m, j), activation in iteration.activation.items():
            assert abs(float(found["activation"][item, m, j]) - activation) < 1e-10
            pose_D = found["pose"][item, m, j].numpy()
            np.testing.assert_allclose(pose_D, iteration.mean[m, j], rtol=0, atol=1e-10)
