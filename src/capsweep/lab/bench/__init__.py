"""What `make bench` measures: numbers beside the bars they are held to, as tables, or on a page.

A benchmark is a function `measure_NAME(is_quick)` of a module here, which returns a BenchReport; a
quick one only shows that it runs.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby, takewhile
from typing import Any

import torch
from torch.utils.benchmark import timer

from capsweep.config import code_identity, package_files
from capsweep.ledger.listing import read_hardware
from capsweep.report import grid
from capsweep.training import provenance

THREADS = 2  # of the bars: two cores
LONGEST = 120  # characters of what an exception says
Row = Mapping[str, Any]
Bar = tuple[str, str, str, float]  # case and candidate of a row, its column, and the least there


@dataclass(frozen=True)
class Measured:
    """One number; good when not above `bar`, or, for what should be large, `at_least` it.

    value: None where nothing could be measured. bar: None for a number that is held to nothing.
    """

    what: str
    value: float | None
    unit: str
    bar: float | None = None
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """Return kept, MISSED, or nothing where there is no number or no bar."""
        if self.bar is None or self.value is None:
            return ""
        is_kept = self.value >= self.bar if self.at_least else self.value <= self.bar
        return "kept" if is_kept else "MISSED"

    def as_row(self) -> tuple[str, ...]:
        """Return the columns of the table of bars."""
        value = grid.MISSING if self.value is None else f"{_format(self.value)} {self.unit}"
        side = "at least" if self.at_least else "at most"
        return self.what, value, "" if self.bar is None else f"{side} {self.bar:g}", self.verdict


@dataclass(frozen=True)
class BenchReport:
    """Collects numbers beside their bars, and the timings they come from.

    rows: of tables; neighbours with the same names in the same order are one.
    """

    measured: list[Measured] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @contextmanager
    def catching(self, candidate: str) -> Iterator[None]:
        """Let a candidate fail, whatever it raises: that is a bar missed, and the others go on."""
        try:
            yield
        except Exception as error:  # of a candidate: it becomes a row
            cause = f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST]}"
            self.measured.append(Measured(f"{candidate}: {cause}", 1.0, "fault", 0))

    def find(self, case: str, candidate: str, column: str) -> float | None:
        """Return what stands in a column of the first row of a candidate; None: it has no row."""
        names = case, candidate
        here = (r.get(column) for r in self.rows if (r.get("case"), r.get("candidate")) == names)
        return next(here, None)

    def judge(self, bars: Iterable[Bar]) -> None:
        """Add the number of each bar, that of the first row of its case and candidate."""
        for case, name, column, least in bars:
            unit = "x" if column.startswith("over ") else column
            value = self.find(case, name, column)
            self.measured.append(Measured(f"{case}, {name}: {column}", value, unit, least, True))

    def judge_worst(
        self, column: str, unit: str, bar: float | None, at_least: bool = False
    ) -> None:
        """Add the worst number of a column, if it has any, with the names of its row."""
        having = [row for row in self.rows if row.get(column) is not None]
        for row in sorted(having, key=lambda row: row[column], reverse=not at_least)[:1]:
            names = takewhile(lambda value: not isinstance(value, float), row.values())
            what = f"{column}, the worst: {', '.join(map(str, names))}"
            self.measured.append(Measured(what, row[column], unit, bar, at_least))

    def make_tables(self) -> list[tuple[Sequence[str], list[Sequence[str]]]]:
        """Return header and rows of each table: the bars, then the timings."""
        bars = [one.as_row() for one in self.measured]
        tables: list[Any] = [(("what", "measured", "must", ""), bars)]
        for header, rows in groupby(self.rows, key=list):
            tables.append((header, [[_format(row[name]) for name in header] for row in rows]))
        return tables


def _format(value: Any) -> str:
    """Return three digits, or all before the point."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return grid.format_value(value)


def is_gpu() -> bool:
    """Return whether the benchmarks run on a GPU."""
    return torch.cuda.is_available()


def get_device() -> torch.device:
    """Return a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def time_call(call: Callable[[], object]) -> float:
    """Return the seconds that one call takes, its work on the device included."""
    started = timer()
    call()
    return timer() - started


def describe_conditions() -> str:
    """Return a line on code, versions, hardware and load, before a benchmark loads the machine."""
    hardware, code = provenance.describe_hardware(), package_files.describe_code()
    package = f"{code_identity.hash_package()} of no checkout"
    commit = code["commit"][:12] if code["commit"] else package
    commit += ", changed" if code["dirty"] else ""
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, code {commit}, {read_hardware({'hardware': hardware})}, "
        f"{hardware['cores']} cores, load {os.getloadavg()[0]:.2f}, "
        f"torch {provenance.find_version('torch')}"
    )
