"""The difference of two arms that ran on the same seeds."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from capsweep.statistics.summary import LEVEL, half_width

ENUMERATED = 20  # sign flips are counted exactly up to so many pairs


@dataclass(frozen=True)
class Paired:
    """Mean difference over n common seeds, its t interval, and two p values of "no difference".

    interval and p values are None for one pair. `sign_flip` assumes only that under no difference
    each pair's sign is a fair coin.
    """

    n: int
    mean: float
    interval: tuple[float, float] | None
    t_test: float | None
    sign_flip: float | None


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """ours - theirs over the seeds both have; None when they have none in common.

    Sources: Student 1908; Fisher, "The design of experiments", 1935, section 21 (sign flips).
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    differences = np.array([ours[seed] - theirs[seed] for seed in seeds], dtype=np.float64)
    n, mean = len(differences), float(differences.mean())
    if n == 1:
        return Paired(1, mean, None, None, None)
    std = float(differences.std(ddof=1))
    half = half_width(std, n, LEVEL)
    return Paired(n, mean, (mean - half, mean + half), t_test(differences), sign_flip(differences))


def t_test(differences: Sequence[float] | np.ndarray) -> float:
    """Two-sided p of Student's paired test. Equal differences: 1 if they are zero, else 0."""
    array = np.asarray(differences, dtype=np.float64)
    n, std = len(array), float(array.std(ddof=1))
    if std == 0:
        return 1.0 if array[0] == 0 else 0.0
    t = float(array.mean()) / (std / math.sqrt(n))
    return float(2 * stats.t.sf(abs(t), n - 1))


def sign_flip(differences: Sequence[float] | np.ndarray) -> float:
    """Two-sided exact p of the mean under all sign flips; by Student's test above 20 pairs."""
    array = np.asarray(differences, dtype=np.float64)
    if len(array) > ENUMERATED:
        return t_test(array)
    observed = abs(float(array.sum()))
    tolerance = 1e-12 * float(np.abs(array).sum())
    signs = itertools.product((1.0, -1.0), repeat=len(array) - 1)  # the mirror images count alike
    sums = np.array([array[0] + np.dot(sign, array[1:]) for sign in signs])
    return float(np.mean(np.abs(sums) >= observed - tolerance))


def smallest_p(n: int) -> float:
    """The smallest two-sided p that sign flips of n pairs can reach: 2 / 2**n."""
    return 2.0 ** (1 - n)
