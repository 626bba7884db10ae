"""The format and the range of each metric. A metric is given by its name, such as `test/error`."""

import math
from dataclasses import dataclass
from functools import cache

# Last parts of metric names, such as `error` of `test/error`.
FRACTIONS = {"error", "balanced_error", "at_least_one", "segmentation"}
POSITIVE = {"loss", "loss_step", "reconstruction"}
HIGHER_IS_BETTER = {"at_least_one", "segmentation"}


@dataclass(frozen=True)
class Measure:
    """The format and the range of a metric.

    Attributes:
        factor: Factor by which a value is multiplied before it is printed.
        format_spec: Python's format specification of the printed value.
        unit: Unit printed after the value.
        diff_unit: Text that names the unit of differences, such as ", in percentage points".
        higher_is_better: Whether larger values are better.
        low: Least possible value.
        high: Greatest possible value.
    """

    factor: float
    format_spec: str
    unit: str
    diff_unit: str
    higher_is_better: bool
    low: float = -math.inf
    high: float = math.inf

    @property
    def has_direction(self) -> bool:
        """Whether it is known if larger values are better; it is known if there is a bound."""
        return math.isfinite(self.low)

    def format_number(self, value: float, sign: str = "") -> str:
        """Write a value as text, without its unit.

        If `sign` is "+", a positive value gets a plus sign.
        """
        return f"{self.factor * value:{sign}{self.format_spec}}"


@cache
def measure_of(metric: str) -> Measure:
    """Return the format and range of a metric.

    Fractions are printed in percent with two decimals, all other metrics with four significant
    digits.
    """
    name = metric.rpartition("/")[2]
    higher = name in HIGHER_IS_BETTER
    if name in FRACTIONS:
        return Measure(100, ".2f", " %", ", in percentage points", higher, 0, 1)
    low = 0 if name in POSITIVE else -math.inf
    return Measure(1, ".4g", "", "", higher, low)
