"""One measured number and the bar it is held to."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """What was measured; good when not above `bar`."""

    what: str
    value: float
    unit: str
    bar: float

    @property
    def holds(self) -> bool:
        """Whether the bar is kept."""
        return self.value <= self.bar

    def __str__(self) -> str:
        kept = "" if self.holds else "  ABOVE THE BAR"
        return f"{self.what}: {self.value:.2f} {self.unit} (bar {self.bar:g}){kept}"
