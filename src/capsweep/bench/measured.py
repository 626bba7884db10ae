"""One measured number and the bar it is held to."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """What was measured; good when not above `bar`, or, for what should be large, `at_least` it."""

    what: str
    value: float
    unit: str
    bar: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the bar is kept."""
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def __str__(self) -> str:
        missed = "BELOW" if self.at_least else "ABOVE"
        kept = "" if self.holds else f"  {missed} THE BAR"
        bar = f"at least {self.bar:g}" if self.at_least else f"{self.bar:g}"
        return f"{self.what}: {self.value:.2f} {self.unit} (bar {bar}){kept}"
