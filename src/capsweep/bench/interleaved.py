"""Candidates timed turn by turn, A B A B, so that whatever else the machine does slows them all."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from capsweep.bench import device

Seconds = dict[str, list[float]]
BASELINES = ("textbook", "bmm")


def take(
    candidates: Mapping[str, Callable[[], object]], budget: float = 4.0, least: int = 5
) -> Seconds:
    """Seconds of each call of each candidate, one call of each in every round.

    Rounds go on for `budget` seconds, and there are at least `least`; before them comes one call of
    each that does not count.
    """
    for call in candidates.values():
        call()
    taken: Seconds = {name: [] for name in candidates}
    begun = time.perf_counter()
    while len(next(iter(taken.values()))) < least or time.perf_counter() - begun < budget:
        for name, call in candidates.items():
            taken[name].append(device.seconds(call))
    return taken


def ratio(taken: Seconds, slow: str, fast: str) -> float:
    """How many times longer `slow` takes: the median over rounds, in each of which both ran at
    almost the same moment.
    """
    return median(a / b for a, b in zip(taken[slow], taken[fast], strict=True))


def row(
    taken: Seconds, name: str, images: int, extra: int | None, flops: float, limit: float
) -> dict[str, Any]:
    """The columns that all timings of a candidate have. extra: bytes; flops: of one call; limit:
    operations a second of a product of matrices.
    """
    seconds = median(taken[name])
    return {
        "candidate": name,
        "ms": seconds * 1e3,
        "images/s": images / seconds,
        **{f"over {slow}": over(taken, slow, name) for slow in BASELINES},
        "extra MB": None if extra is None else extra / 1e6,
        "of matmul limit": flops / seconds / limit,
    }


def over(taken: Seconds, slow: str, fast: str) -> float | None:
    """`ratio`, or None where one of the two was not measured."""
    return ratio(taken, slow, fast) if {slow, fast} <= taken.keys() else None
