"""How a metric is written and which way is better, from its name: `test/error`, `test/loss`."""

import math
from dataclasses import dataclass
from functools import cache

FRACTIONS = {"error", "at_least_one", "segmentation"}
POSITIVE = {"loss", "loss_step", "reconstruction"}
HIGHER_IS_BETTER = {"at_least_one", "segmentation"}


@dataclass(frozen=True)
class Measure:
    """factor: on the measured number; form: of it, as in a format string; unit: after it; points:
    what a difference is in; low, high: the least and the most that it can be.
    """

    factor: float
    form: str
    unit: str
    points: str
    higher_is_better: bool
    low: float = -math.inf
    high: float = math.inf

    def format_number(self, value: float, sign: str = "") -> str:
        """Return a value without its unit; sign "+": with its sign."""
        return f"{self.factor * value:{sign}{self.form}}"


@cache
def measure_of(metric: str) -> Measure:
    """Return how a metric is written: fractions in percent, all else in four digits."""
    name = metric.rpartition("/")[2]
    higher = name in HIGHER_IS_BETTER
    if name in FRACTIONS:
        return Measure(100, ".2f", " %", ", in percentage points", higher, 0, 1)
    low = 0 if name in POSITIVE else -math.inf
    return Measure(1, ".4g", "", "", higher, low)
