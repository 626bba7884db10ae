"""Measured numbers beside the bars they are held to: as tables, as JSON, and in a page of docs/."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from capsweep.lab.bench import machine
from capsweep.report import grid, publish

BARS = ("what", "measured", "must", "")


@dataclass(frozen=True)
class Measured:
    """One number; good when not above `bar`, or, for what should be large, `at_least` it.

    value: None where nothing could be measured. bar: None for a number that is held to nothing.
    skipped: why the bar does not apply here.
    """

    what: str
    value: float | None
    unit: str
    bar: float | None = None
    at_least: bool = False
    skipped: str | None = None

    @property
    def verdict(self) -> str:
        """kept, missed, skipped or no bar."""
        if self.skipped is not None:
            return "skipped"
        if self.bar is None or self.value is None:
            return "no bar"
        is_kept = self.value >= self.bar if self.at_least else self.value <= self.bar
        return "kept" if is_kept else "missed"

    def as_row(self) -> tuple[str, ...]:
        """The columns of the table of bars."""
        value = grid.MISSING if self.value is None else f"{format_number(self.value)} {self.unit}"
        side = "at least" if self.at_least else "at most"
        bar = "" if self.bar is None else f"{side} {self.bar:g}"
        words = {"skipped": f"skipped: {self.skipped}", "missed": "MISSED", "no bar": ""}
        return self.what, value, bar, words.get(self.verdict, self.verdict)


@dataclass(frozen=True)
class BenchReport:
    """What a benchmark reports: numbers beside their bars, and the timings they come from.

    timings: rows of tables; neighbours with the same names in the same order are one. None: not
    measured.
    """

    measured: Sequence[Measured]
    timings: Sequence[Mapping[str, Any]] = ()


def add_faults(report: BenchReport, name: str, faults: Mapping[str, str]) -> BenchReport:
    """The report of a benchmark with the candidates that it could not measure: a bar, which one of
    them misses, and a row for each with its cause.
    """
    what = f"{name}: candidates that fail, or differ from the reference"
    bar = Measured(what, float(len(faults)), "candidates", 0)
    rows = [{"not measured": each, "cause": cause} for each, cause in faults.items()]
    return BenchReport([*report.measured, bar], [*report.timings, *rows])


def to_json(name: str, report: BenchReport, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """All that is known, numbers as numbers; one that is not finite is a word, as JSON has none."""
    measured = [asdict(bar) | {"verdict": bar.verdict} for bar in report.measured]
    return {
        "bench": name,
        "measured": [_without_infinite(bar) for bar in measured],
        "timings": [_without_infinite(row) for row in report.timings],
        "conditions": dict(conditions),
    }


def _without_infinite(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def make_tables(report: BenchReport) -> list[tuple[Sequence[str], list[Sequence[str]]]]:
    """Header and rows of each table: the bars, then the timings."""
    tables: list[tuple[Sequence[str], list[Sequence[str]]]]
    tables = [(BARS, [bar.as_row() for bar in report.measured])]
    for header, rows in groupby(report.timings, key=list):
        tables.append((header, [[format_number(row[name]) for name in header] for row in rows]))
    return tables


def format_number(value: Any) -> str:
    """Three digits, or all before the point."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return grid.format_value(value)


def publish_section(
    page: Path, name: str, report: BenchReport, conditions: Mapping[str, Any]
) -> None:
    """Put the section of a benchmark into the page; every other byte of it stays."""
    parts = [f"`capsweep bench {name}`, {machine.describe_conditions(conditions)}."]
    parts += [grid.pipe_table(header, rows) for header, rows in make_tables(report)]
    publish.renew_section(page, _name_section(name, conditions), "\n\n".join(parts) + "\n")


def check_page(page: Path, name: str, conditions: Mapping[str, Any]) -> None:
    """Raise UserError now, not after minutes of measuring, unless the page has a place for it."""
    publish.renew_section(page, _name_section(name, conditions), None)


def _name_section(name: str, conditions: Mapping[str, Any]) -> str:
    """Return the section of a benchmark; that of a GPU stands beside that of a processor."""
    return f"bench {name} on a GPU" if conditions["device"] == "cuda" else f"bench {name}"
