"""Measured numbers and the bars they are held to, and what a benchmark reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["kept", "missed", "skipped", "no bar"]


@dataclass(frozen=True)
class Measured:
    """What was measured; good when not above `bar`, or, for what should be large, `at_least` it.

    value: None where nothing could be measured. bar: None for a number that is held to nothing.
    stretch: a bar beyond the bar, which is hoped for. skipped: why the bar does not apply here.
    """

    what: str
    value: float | None
    unit: str
    bar: float | None = None
    at_least: bool = False
    stretch: float | None = None
    skipped: str | None = None

    def __post_init__(self) -> None:
        if self.value is None and self.skipped is None:
            raise ValueError(f"{self.what}: neither a value nor a reason why there is none")

    @property
    def verdict(self) -> Verdict:
        """What became of the bar. One that is skipped is neither kept nor missed."""
        if self.skipped is not None:
            return "skipped"
        if self.bar is None:
            return "no bar"
        return "kept" if self._reaches(self.bar) else "missed"

    def told(self) -> str:
        """The verdict in words: by how much a bar was missed, why it was skipped."""
        if self.verdict == "skipped":
            return f"skipped: {self.skipped}"
        if self.verdict == "missed" and self.bar and self.value is not None:
            return f"MISSED: {self.value / self.bar:.2f} of the bar"
        if self.verdict == "kept" and self.stretch is not None and self._reaches(self.stretch):
            return "kept, and the stretch"
        return "" if self.verdict == "no bar" else self.verdict

    def bound(self, bar: float | None) -> str:
        """A bar as it is written, nothing for none."""
        if bar is None:
            return ""
        return f"{'at least' if self.at_least else 'at most'} {bar:g}"

    def _reaches(self, bar: float) -> bool:
        assert self.value is not None
        return self.value >= bar if self.at_least else self.value <= bar

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "what": self.what,
            "value": self.value,
            "unit": self.unit,
            "bar": self.bar,
            "at_least": self.at_least,
            "stretch": self.stretch,
            "verdict": self.verdict,
            "skipped": self.skipped,
        }


@dataclass(frozen=True)
class Report:
    """What a benchmark says: numbers beside their bars, and the timings they come from.

    timings: rows of one table, each with the same names in the same order; None: not measured.
    notes: what a reader must know to judge the numbers. limits: what this machine can do at most.
    """

    measured: Sequence[Measured]
    timings: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
