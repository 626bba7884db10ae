"""An ensemble of trained networks, from the scores that they stored: no model is run.

Shape letters: M test examples, N classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capsweep.errors import UserError
from capsweep.statistics.examples import find_wrong


@dataclass(frozen=True)
class Member:
    """A finished cell's scores [M, N] (capsule lengths or logits), and labels, [M] or [M, 2]."""

    name: str
    scores_MN: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Ensemble:
    """single: the error of each member; wrong: of `total` examples, by the members together."""

    single: tuple[float, ...]
    wrong: int
    total: int


def evaluate(members: Sequence[Member]) -> Ensemble:
    """The errors of the members, and of their scores added.

    Raises UserError naming the cells that were tested on different examples or classes, or that
    have no predictions.
    """
    single = tuple(float(_wrong(member).mean()) for member in members)
    first = members[0]
    together = find_wrong(add(members), first.labels)
    return Ensemble(single, int(together.sum()), len(together))


def add(members: Sequence[Member]) -> np.ndarray:
    """The sum of the members' scores [M, N], in float64: the longest capsules on average.

    Raises UserError naming the first two that do not belong together.
    """
    first = members[0]
    for other in members[1:]:
        shapes = f"{first.scores_MN.shape} and {other.scores_MN.shape}"
        if other.scores_MN.shape != first.scores_MN.shape:
            raise UserError(f"cells {first.name} and {other.name} have scores of shapes {shapes}")
        if not np.array_equal(other.labels, first.labels):
            raise UserError(
                f"cells {first.name} and {other.name} were tested on different labels; only "
                "networks that saw the same test examples are an ensemble"
            )
    return np.stack([member.scores_MN for member in members]).sum(axis=0, dtype=np.float64)


def _wrong(member: Member) -> np.ndarray:
    try:
        return find_wrong(member.scores_MN, member.labels)
    except ValueError as error:
        raise UserError(f"{member.name}: predictions.npz: {error}; run the cell again") from error
