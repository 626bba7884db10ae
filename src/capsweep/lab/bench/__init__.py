"""The benchmarks of `make bench`: measured numbers beside their bars, as tables or on a page.

A bar is the limit for a measured number. A benchmark is a function `measure_NAME(is_quick)` in a
module of this package. The function returns a `BenchReport`. If `is_quick` is true, sizes are tiny,
to test only that the benchmark runs.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import torch
from torch.utils.benchmark import timer

from capsweep.config import code_identity, package_files
from capsweep.ledger.listing import read_hardware
from capsweep.report import grid
from capsweep.training import provenance

THREADS = 2  # the bars on a CPU are for two cores
LONGEST = 120  # an exception's message is cut to this number of characters
Row = Mapping[str, Any]  # values by column
Bar = tuple[str, str, str, float]  # case, candidate, column, and the smallest allowed value


@dataclass(frozen=True)
class Measurement:
    """One measured number and its bar.

    Attributes:
        what: What was measured.
        value: The number; None if it could not be measured.
        unit: Unit of the number, such as `s` or `x` (times).
        bar: The limit for the number; None if there is no limit.
        at_least: Whether `bar` is a lower limit; otherwise it is an upper limit.
    """

    what: str
    value: float | None
    unit: str
    bar: float | None = None
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """`kept` or `MISSED`; empty if there is no number or no bar."""
        if self.bar is None or self.value is None:
            return ""
        is_kept = self.value >= self.bar if self.at_least else self.value <= self.bar
        return "kept" if is_kept else "MISSED"

    def as_row(self) -> tuple[str, ...]:
        """Return the measurement as a row of the table of bars: name, value, bar and verdict."""
        unit = self.unit if self.unit == "x" else f" {self.unit}"
        value = grid.MISSING if self.value is None else f"{_format(self.value)}{unit}"
        side = "≥" if self.at_least else "≤"
        return self.what, value, "" if self.bar is None else f"{side}{self.bar:,g}", self.verdict

    def as_line(self) -> str:
        """Return the measurement as an item of a Markdown list; mark a missed bar as MISSED."""
        what, value, bar, verdict = self.as_row()
        return f"- {what}: {value} ({bar}{', MISSED' if verdict == 'MISSED' else ''})"


@dataclass(frozen=True)
class BenchReport:
    """The results of one benchmark.

    Attributes:
        numbers: Measurements. Each one becomes a row of the table of bars.
        rows: Rows of the other tables, each as {column: value}. Consecutive rows with the same
            columns form one table.
    """

    numbers: list[Measurement] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @contextmanager
    def catching(self, candidate: str) -> Iterator[None]:
        """Record an exception of the `with` block as a missed bar, so that the benchmark continues.

        Args:
            candidate: Name of the candidate, for the report.
        """
        try:
            yield
        except Exception as error:  # any fault of a candidate becomes a line of the report
            cause = f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST]}"
            self.numbers.append(Measurement(f"{candidate}: {cause}", 1.0, "fault", 0))

    def find(self, case: str, candidate: str, column: str) -> float | None:
        """Return a column's value in the first row with this case and candidate.

        The result is None if there is no such row, or if the row does not have the column.
        """
        names = case, candidate
        here = (r.get(column) for r in self.rows if (r.get("case"), r.get("candidate")) == names)
        return next(here, None)

    def judge(self, bars: Iterable[Bar]) -> None:
        """Add a `Measurement` to `numbers` for each bar; the bar is a lower limit.

        The value is that of the bar's column in the first row with the bar's case and candidate. It
        is None if there is no such row.
        """
        for case, name, column, bar in bars:
            unit = "x" if column.startswith("over ") else column
            value = self.find(case, name, column)
            self.numbers.append(Measurement(f"{case}, {name} {column}", value, unit, bar, True))

    def make_tables(self) -> list[tuple[Sequence[str], list[Sequence[str]]]]:
        """Return the header and the rows of each table; the table of bars is the first."""
        bars = [one.as_row() for one in self.numbers]
        tables: list[Any] = [(("what", "measured", "must", ""), bars)]
        for header, rows in groupby(self.rows, key=list):
            tables.append((header, [[_format(row[name]) for name in header] for row in rows]))
        return tables


def _format(value: Any) -> str:
    """Format a value; a float gets three significant digits, or no decimals if |value| >= 100."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return grid.format_value(value)


def is_gpu() -> bool:
    """Return whether the benchmarks run on a GPU."""
    return torch.cuda.is_available()


def get_device() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def time_call(call: Callable[[], object]) -> float:
    """Return the seconds that one call takes, including its work on a GPU."""
    started = timer()
    call()
    return timer() - started


def describe_conditions() -> str:
    """Return one line with the date, the code, the hardware, the load, and the version of torch.

    Call this function before a benchmark, because the benchmark itself raises the load.
    """
    hardware, code = provenance.describe_hardware(), package_files.describe_code()
    commit = (code["commit"] or code_identity.hash_package())[:12]
    commit += ", changed" if code["dirty"] else ""
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, code {commit}, {read_hardware({'hardware': hardware})}, "
        f"{hardware['cores']} cores, load {os.getloadavg()[0]:.2f}, "
        f"torch {provenance.find_version('torch')}"
    )
