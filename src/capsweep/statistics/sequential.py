"""More seeds where the order of two rows is undecided, without the bias of stopping when it suits.

Looking again after each batch of seeds gives chance more than one opportunity. The level is
therefore divided equally over all planned looks (Bonferroni), and within a look Holm's procedure
guards the pairs of neighbours: over all looks and pairs of one column, the chance that any order
is called decided by noise stays below the level, whatever the stopping. Who ranks several columns
divides the level over them.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from capsweep.statistics.paired import adjust_holm, paired_difference
from capsweep.statistics.summary import summarise

LEVEL = 0.05
CORRECTION = (
    "more seeds where neighbouring rows were undecided; correction for optional stopping: "
    "level 0.05 divided equally over {looks} planned looks (Bonferroni) and over the columns, Holm "
    "over the pairs of a look"
)


def plan_looks(first: int, last: int, step: int) -> tuple[int, ...]:
    """The numbers of seeds at which one looks: from `first` in steps to `last`, which is included.

    Raises ValueError unless 3 <= first <= last and step >= 1: two seeds that agree by chance, as
    rates in steps of one example do, would look decided.
    """
    if not 3 <= first <= last or step < 1:
        raise ValueError(f"cannot look at {first} to {last} seeds in steps of {step}")
    return (*range(first, last, step), last)


def undecided_rows(
    rows: Mapping[Any, Mapping[int, float]], num_looks: int, level: float = LEVEL
) -> set[Any]:
    """Rows whose order beside a neighbour, ranked by mean, is not decided at this look.

    rows: values by seed. Rows whose differences do not vary stay undecided: equal rows because no
    number of seeds decides an order that is not there, others because chance makes few seeds agree.
    Raises ValueError unless num_looks >= 1.
    """
    if num_looks < 1:
        raise ValueError(f"num_looks must be >= 1, got {num_looks}")
    ranked = sorted(rows, key=lambda row: summarise(list(rows[row].values())).mean)
    pairs = list(pairwise(ranked))
    p_values = adjust_holm([_paired_p(rows[left], rows[right]) for left, right in pairs])
    found: set[Any] = set()
    for pair, p in zip(pairs, p_values, strict=True):
        if p > level / num_looks:
            found |= set(pair)
    return found


def _paired_p(left: Mapping[int, float], right: Mapping[int, float]) -> float:
    difference = paired_difference(left, right)
    if difference is None or difference.t_test is None:
        return 1.0
    return difference.t_test


def describe_correction(planned: Sequence[int]) -> str:
    """The sentence that names the correction in a table."""
    return CORRECTION.format(looks=len(planned))
