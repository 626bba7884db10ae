"""What n repetitions say about one number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

BINS = 2**18  # of equal width: quantiles are exact to one, where couplings are all but equal too
LEVEL = 0.95


class Distribution:
    """Of numbers between 0 and `top`, added a few at a time."""

    def __init__(self, top: float) -> None:
        self.top, self.counts = top, np.zeros(BINS, dtype=np.int64)
        self.sum = self.squares = 0.0
        self.least, self.most = top, 0.0

    def add_values(self, values: np.ndarray) -> None:
        """Some more, of any shape."""
        values = values.ravel()
        if not len(values):
            return
        bins = np.minimum((values * (BINS / self.top)).astype(np.int64), BINS - 1)
        self.counts += np.bincount(bins, minlength=BINS)
        self.sum += float(values.sum())
        self.squares += float(np.square(values).sum())
        self.least = min(self.least, float(values.min()))
        self.most = max(self.most, float(values.max()))

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """Of at least one; not rounded out of the numbers."""
        return min(max(self.sum / self.count, self.least), self.most)

    @property
    def std(self) -> float:
        """Around the mean."""
        return max(self.squares / self.count - self.mean**2, 0.0) ** 0.5

    def quantiles(self, levels: tuple[float, ...]) -> np.ndarray:
        """Of at least one number; numbers of a bin count as spread evenly over it."""
        below = np.concatenate([[0.0], np.cumsum(self.counts)]) / self.count
        found = np.interp(levels, below, np.linspace(0, self.top, BINS + 1))
        return np.clip(found, self.least, self.most)


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
