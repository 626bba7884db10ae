"""Statistics over seeds: means with intervals, paired differences, and whether seeds suffice.

Intervals are Student's t intervals. An interval needs at least three seeds, because an interval of
two seeds reaches nine standard deviations to either side. Intervals are clipped to the possible
range of the metric; for example, no error rate is below 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # not scipy.stats, whose import takes half a second

CONFIDENCE = 0.95  # confidence level of intervals
LEAST_SEEDS = 3  # smallest number of seeds for an interval
LEVEL = 0.05  # significance level of decisions
SMALLEST_SPREAD = 1e-9  # differences with a smaller relative spread vary by rounding only


@dataclass(frozen=True)
class Summary:
    """The mean of several values, with its standard deviation and interval.

    Attributes:
        n: Number of values.
        mean: Mean.
        std: Sample standard deviation. None for a single value.
        interval: Interval of the mean. None if there are fewer than LEAST_SEEDS values, or if all
            values are equal. Equal values do not prove that the spread is 0, because error rates
            count whole examples.
    """

    n: int
    mean: float
    std: float | None
    interval: tuple[float, float] | None


def summarise_values(
    values: Sequence[float], low: float = -math.inf, high: float = math.inf
) -> Summary:
    """Compute the mean of values, its sample standard deviation and its t interval.

    Source: Student, "The probable error of a mean", 1908.

    Args:
        values: At least one value.
        low: Least possible value; the interval is clipped to it.
        high: Greatest possible value; the interval is clipped to it.

    Raises:
        ValueError: If there are no values.
    """
    if not values:
        raise ValueError("a summary needs at least one value")
    array = np.asarray(values, dtype=np.float64)
    if len(array) == 1:
        return Summary(1, float(array[0]), None, None)
    if array.min() == array.max():  # the computed mean of equal values may be rounded
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


def list_common_keys(series: Sequence[Mapping[int, float]]) -> list[int]:
    """Return the seeds or epochs that all series have, in increasing order.

    A mean over the series, taken at these keys only, does not jump at the end of a shorter series.
    """
    return sorted(set.intersection(*map(set, series))) if series else []


def adjust_holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p values for multiple tests by Holm's procedure.

    The k-th smallest of m p values is multiplied by m - k + 1. The results are limited to 1 and
    made non-decreasing in the order of the p values. Source: Holm 1979.

    Args:
        p_values: The p value of each comparison; None for a comparison without a test.

    Returns:
        The adjusted p values, in the order of `p_values`; None stays None.
    """
    tests = {index: p for index, p in enumerate(p_values) if p is not None}
    adjusted: list[float | None] = [None] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(tests, key=tests.__getitem__)):
        running = max(running, min(1.0, tests[index] * (len(tests) - rank)))
        adjusted[index] = running
    return adjusted


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference of two rows over their common seeds.

    Attributes:
        n: Number of common seeds.
        mean: Mean of the differences, first row minus second row.
        interval: Interval of the mean. None if there are fewer than LEAST_SEEDS seeds, or if the
            differences do not vary.
        t_test: p value of the paired t test of the hypothesis "no difference". None if there is
            one seed, or if the differences do not vary.
    """

    n: int
    mean: float
    interval: tuple[float, float] | None
    t_test: float | None

    @property
    def is_constant(self) -> bool:
        """Whether the differences do not vary over several seeds, so that no test is possible."""
        return self.n > 1 and self.t_test is None


def paired_difference(
    ours: Mapping[int, float], theirs: Mapping[int, float], most: float = math.inf
) -> PairedDifference | None:
    """Compute the mean of `ours` minus `theirs` over the seeds that both have.

    Source: Student 1908.

    Args:
        ours: Values of the first row, by seed.
        theirs: Values of the second row, by seed.
        most: Greatest possible absolute difference; the interval is clipped to -most..most.

    Returns:
        The difference, or None if there are no common seeds.
    """
    seeds = list_common_keys([ours, theirs])
    if not seeds:
        return None
    differences = np.array([ours[seed] - theirs[seed] for seed in seeds], dtype=np.float64)
    p = t_test(differences) if len(seeds) > 1 else None
    interval = None if p is None else _t_interval(differences, -most, most)
    return PairedDifference(len(seeds), float(differences.mean()), interval, p)


def t_test(differences: Sequence[float] | np.ndarray) -> float | None:
    """Compute the two-sided p value of Student's paired t test.

    Args:
        differences: At least two differences.

    Returns:
        The p value, or None if the differences do not vary. Equal differences do not prove that
        the variance is 0: error rates count whole examples, so a few differences are often equal
        by chance.

    Raises:
        ValueError: If there are fewer than two differences, or if a difference is not finite.
    """
    array = np.asarray(differences, dtype=np.float64)
    if len(array) < 2 or not np.isfinite(array).all():
        raise ValueError(f"a t test needs 2 or more finite differences, got {array.tolist()}")
    n, std = len(array), float(array.std(ddof=1))
    if std <= SMALLEST_SPREAD * float(np.abs(array).max()):
        return None
    t = float(array.mean()) / (std / math.sqrt(n))
    return float(2 * special.stdtr(n - 1, -abs(t)))


def smallest_p(n: int) -> float:
    """Return the smallest two-sided p value that a sign-flip test of n pairs can reach, 2 / 2**n.

    Such a test has one assumption: if the two rows do not differ, each difference of a pair is
    equally likely to be positive or negative. Source: Fisher, "The design of experiments", 1935,
    section 21.
    """
    return 2.0 ** (1 - n)
