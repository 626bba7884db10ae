"""Several tests at once: the chance that any of them errs is kept below the level."""

from collections.abc import Sequence


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
