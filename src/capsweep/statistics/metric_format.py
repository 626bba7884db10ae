"""The format and the range of a metric, found by the name of the metric, such as `test/error`."""

import math
from dataclasses import dataclass
from functools import cache

# Last parts of metric names, such as `error` of `test/error`.
FRACTIONS = {"error", "at_least_one", "segmentation"}
POSITIVE = {"loss", "loss_step", "reconstruction"}
HIGHER_IS_BETTER = {"at_least_one", "segmentation"}


@dataclass(frozen=True)
class Measure:
    """The format and the range of a metric.

    Attributes:
        factor: Factor applied to the number before it is printed.
        format_spec: Format specification of the printed number.
        unit: Unit printed after the number.
        diff_unit: Unit of differences, as printed in headings.
        higher_is_better: Whether larger numbers are better.
        low: Least possible number.
        high: Greatest possible number.
    """

    factor: float
    format_spec: str
    unit: str
    diff_unit: str
    higher_is_better: bool
    low: float = -math.inf
    high: float = math.inf

    def format_number(self, value: float, sign: str = "") -> str:
        """Format a number without its unit.

        If `sign` is "+", positive numbers have a sign too.
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
