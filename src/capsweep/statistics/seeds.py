"""What the numbers of several seeds say: a mean and its interval, the difference of two rows that
ran on the same seeds, and whether more seeds are needed.

Looking again after each batch of seeds gives chance more than one opportunity. The level is
therefore divided equally over all planned looks (Bonferroni), and within a look Holm's procedure
guards the pairs of neighbours: over all looks and pairs of one column, the chance that any order
is called decided by noise stays below the level, whatever the stopping. Who ranks several columns
divides the level over them.

Intervals are Student's. They are given from three seeds on, since those of two reach nine standard
deviations to either side, and are clipped to what the metric can be: no error rate is below 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

CONFIDENCE = 0.95  # of intervals
LEAST_SEEDS = 3  # of an interval
LEVEL = 0.05  # of decisions
SAME = 1e-9  # of the largest: below it differences differ by rounding alone
CORRECTION = (
    "more seeds where neighbouring rows were undecided; correction for optional stopping: "
    "level 0.05 divided equally over {looks} planned looks (Bonferroni) and over the columns, Holm "
    "over the pairs of a look"
)


@dataclass(frozen=True)
class Summary:
    """n, mean, sample standard deviation, and the interval of the mean.

    std is None for a single value, the interval for fewer than LEAST_SEEDS. The interval is None
    too where all values are equal: error rates come in steps of one example, so no spread seen is
    not no spread.
    """

    n: int
    mean: float
    std: float | None
    interval: tuple[float, float] | None


def summarise_values(
    values: Sequence[float], low: float = -math.inf, high: float = math.inf
) -> Summary:
    """Return summary of at least one value, with Student's t interval of the mean; low, high: the
    least and the most that a value can be.

    Raises ValueError for none. Source: Student, "The probable error of a mean", 1908.
    """
    if not values:
        raise ValueError("a summary needs at least one value")
    array = np.asarray(values, dtype=np.float64)
    if len(array) == 1:
        return Summary(1, float(array[0]), None, None)
    if array.min() == array.max():  # the mean of equal values may round
        return Summary(len(array), float(array[0]), 0.0, None)
    interval = _t_interval(array, low, high)
    return Summary(len(array), float(array.mean()), float(array.std(ddof=1)), interval)


def _t_interval(array: np.ndarray, low: float, high: float) -> tuple[float, float] | None:
    if len(array) < LEAST_SEEDS:
        return None
    quantile = float(special.stdtrit(len(array) - 1, (1 + CONFIDENCE) / 2))
    half = quantile * float(array.std(ddof=1)) / math.sqrt(len(array))
    mean = float(array.mean())
    return max(mean - half, low), min(mean + half, high)


def list_common_places(series: Sequence[Mapping[int, float]]) -> list[int]:
    """Return the epochs or steps that all series have, in order: the mean over those that happen to
    be left would jump where one ends.
    """
    return sorted(set.intersection(*map(set, series))) if series else []


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p values, in the given order: the k-th smallest times (m - k + 1), made
    monotone.

    Source: Holm 1979.
    """
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = running
    return adjusted


@dataclass(frozen=True)
class PairedDifference:
    """Mean difference over n common seeds, its t interval, and the p value of "no difference".

    t_test is None for one pair, and when nothing varies; so is the interval, and of two pairs.
    """

    n: int
    mean: float
    interval: tuple[float, float] | None
    t_test: float | None

    @property
    def is_constant(self) -> bool:
        """Whether it is the same for all of several seeds, so that nothing can be tested."""
        return self.n > 1 and self.t_test is None


def paired_difference(
    ours: Mapping[int, float], theirs: Mapping[int, float], most: float = math.inf
) -> PairedDifference | None:
    """Return ours - theirs over the seeds both have; None when they have none in common. most: the
    largest that a difference can be.

    Source: Student 1908.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    differences = np.array([ours[seed] - theirs[seed] for seed in seeds], dtype=np.float64)
    p = t_test(differences) if len(seeds) > 1 else None
    interval = None if p is None else _t_interval(differences, -most, most)
    return PairedDifference(len(seeds), float(differences.mean()), interval, p)


def t_test(differences: Sequence[float] | np.ndarray) -> float | None:
    """Return the two-sided p of Student's paired test; None when the differences do not vary.

    Raises ValueError for fewer than two differences, or one that is not a number.

    Error rates come in steps of one example, so that a few pairs often agree by chance: no variance
    seen is not no variance.
    """
    array = np.asarray(differences, dtype=np.float64)
    if len(array) < 2 or not np.isfinite(array).all():
        raise ValueError(f"needs 2 or more finite differences, got {array.tolist()}")
    n, std = len(array), float(array.std(ddof=1))
    if std <= SAME * float(np.abs(array).max()):
        return None
    t = float(array.mean()) / (std / math.sqrt(n))
    return float(2 * special.stdtr(n - 1, -abs(t)))


def smallest_p(n: int) -> float:
    """Return the smallest two-sided p that a test of n pairs can reach which assumes only that
    under no difference each pair's sign is a fair coin: 2 / 2**n.

    Source: Fisher, "The design of experiments", 1935, section 21.
    """
    return 2.0 ** (1 - n)


def list_looks(first: int, last: int, step: int) -> tuple[int, ...]:
    """Return the numbers of seeds at which one looks: from `first` in steps to `last`, which is
    included.

    Raises ValueError unless 3 <= first <= last and step >= 1: two seeds that agree by chance, as
    rates in steps of one example do, would look decided.
    """
    if not 3 <= first <= last or step < 1:
        raise ValueError(f"cannot look at {first} to {last} seeds in steps of {step}")
    return (*range(first, last, step), last)


def undecided_rows(
    rows: Mapping[Any, Mapping[int, float]], num_looks: int, level: float = LEVEL
) -> set[Any]:
    """Return rows whose order beside a neighbour, ranked by mean, is not decided at this look.

    rows: values by seed. Rows whose differences do not vary stay undecided: equal rows because no
    number of seeds decides an order that is not there, others because chance makes few seeds agree.
    """
    ranked = sorted(rows, key=lambda row: summarise_values(list(rows[row].values())).mean)
    pairs = list(pairwise(ranked))
    p_values = adjust_holm([_paired_p(rows[left], rows[right]) for left, right in pairs])
    undecided = [pair for pair, p in zip(pairs, p_values, strict=True) if p > level / num_looks]
    return {row for pair in undecided for row in pair}


def _paired_p(left: Mapping[int, float], right: Mapping[int, float]) -> float:
    difference = paired_difference(left, right)
    return 1.0 if difference is None or difference.t_test is None else difference.t_test


def describe_correction(planned: Sequence[int]) -> str:
    """Return the sentence that names the correction in a table."""
    return CORRECTION.format(looks=len(planned))
