"""Mean, standard deviation and quantiles of more numbers than are kept."""

import numpy as np

BINS = 2**18  # of equal width: quantiles are exact to one, where couplings are all but equal too


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
