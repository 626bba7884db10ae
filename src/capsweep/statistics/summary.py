"""What n repetitions say about one number."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Summary:
    """n, mean and sample standard deviation; std is None for a single value."""

    n: int
    mean: float
    std: float | None


def summarise(values: Sequence[float]) -> Summary:
    """Summary of at least one value. Raises ValueError for none."""
    if not values:
        raise ValueError("a summary needs at least one value")
    array = np.asarray(values, dtype=np.float64)
    std = float(array.std(ddof=1)) if len(array) > 1 else None
    return Summary(len(array), float(array.mean()), std)
