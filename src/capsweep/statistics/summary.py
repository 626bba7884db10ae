"""What n repetitions say about one number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

LEVEL = 0.95


@dataclass(frozen=True)
class Summary:
    """n, mean, sample standard deviation, and the interval of the mean.

    std and interval are None for a single value. The interval is None too where all values are
    equal: error rates come in steps of one example, so no spread seen is not no spread.
    """

    n: int
    mean: float
    std: float | None
    interval: tuple[float, float] | None


def summarise(values: Sequence[float], level: float = LEVEL) -> Summary:
    """Summary of at least one value, with Student's t interval of the mean at a level.

    Raises ValueError for none. Source: Student, "The probable error of a mean", 1908.
    """
    if not values:
        raise ValueError("a summary needs at least one value")
    array = np.asarray(values, dtype=np.float64)
    n, mean = len(array), float(array.mean())
    if n == 1:
        return Summary(n, mean, None, None)
    if array.min() == array.max():  # the mean of equal values may round
        return Summary(n, float(array[0]), 0.0, None)
    std = float(array.std(ddof=1))
    half = half_width(std, n, level)
    return Summary(n, mean, std, (mean - half, mean + half))


def half_width(std: float, n: int, level: float = LEVEL) -> float:
    """Half of the t interval of a mean of n values."""
    return float(special.stdtrit(n - 1, (1 + level) / 2)) * std / math.sqrt(n)
