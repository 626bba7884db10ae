"""The difference of two arms that ran on the same seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import special

from capsweep.statistics.summary import LEVEL, half_width

ENUMERATED = 16  # pairs, of which all sign flips are counted
SAME = 1e-9  # of the largest: below it differences differ by rounding alone


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values, in the given order: the k-th smallest times (m - k + 1), made monotone.

    Raises ValueError for a value outside 0..1. Source: Holm 1979.
    """
    if any(not 0 <= p <= 1 for p in p_values):
        raise ValueError(f"p values must be in 0..1, got {list(p_values)}")
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = running
    return adjusted


@dataclass(frozen=True)
class PairedDifference:
    """Mean difference over n common seeds, its t interval, and two p values of "no difference".

    interval and p values are None for one pair, interval and t_test also when nothing varies.
    `sign_flip` assumes only that under no difference each pair's sign is a fair coin.
    """

    n: int
    mean: float
    interval: tuple[float, float] | None
    t_test: float | None
    sign_flip: float | None


def paired_difference(
    ours: Mapping[int, float], theirs: Mapping[int, float]
) -> PairedDifference | None:
    """ours - theirs over the seeds both have; None when they have none in common.

    Sources: Student 1908; Fisher, "The design of experiments", 1935, section 21 (sign flips).
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    differences = np.array([ours[seed] - theirs[seed] for seed in seeds], dtype=np.float64)
    n, mean = len(differences), float(differences.mean())
    if n == 1:
        return PairedDifference(1, mean, None, None, None)
    p = t_test(differences)
    half = half_width(float(differences.std(ddof=1)), n, LEVEL)
    interval = None if p is None else (mean - half, mean + half)
    return PairedDifference(n, mean, interval, p, sign_flip(differences))


def t_test(differences: Sequence[float] | np.ndarray) -> float | None:
    """Two-sided p of Student's paired test; None when the differences do not vary.

    Raises ValueError for fewer than two differences, or one that is not a number.

    Error rates come in steps of one example, so that a few pairs often agree by chance: no variance
    seen is not no variance.
    """
    array = _check_differences(differences, 2)
    n, std = len(array), float(array.std(ddof=1))
    if std <= SAME * float(np.abs(array).max()):
        return None
    t = float(array.mean()) / (std / math.sqrt(n))
    return float(2 * special.stdtr(n - 1, -abs(t)))


def sign_flip(differences: Sequence[float] | np.ndarray) -> float | None:
    """Two-sided exact p of the mean under all sign flips; None above 16 pairs.

    Raises ValueError for no difference, or one that is not a number.
    """
    array = _check_differences(differences, 1)
    n = len(array)
    if n > ENUMERATED:
        return None
    sums = array[0] + _sign_patterns(n - 1) @ array[1:]  # mirror images count alike
    observed, tolerance = abs(float(array.sum())), SAME * float(np.abs(array).sum())
    return float(np.mean(np.abs(sums) >= observed - tolerance))


def smallest_p(n: int) -> float:
    """The smallest two-sided p that sign flips of n pairs can reach: 2 / 2**n.

    Raises ValueError for no pair.
    """
    if n < 1:
        raise ValueError(f"sign flips need at least one pair, got {n}")
    return 2.0 ** (1 - n)


@cache  # a table asks for the same n in every row
def _sign_patterns(n: int) -> np.ndarray:
    return 1.0 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)


def _check_differences(differences: Sequence[float] | np.ndarray, fewest: int) -> np.ndarray:
    array = np.asarray(differences, dtype=np.float64)
    if len(array) < fewest or not np.isfinite(array).all():
        raise ValueError(f"needs {fewest} or more finite differences, got {array.tolist()}")
    return array
