"""A report for people and for programs: the terminal, Markdown, JSON, and the page in docs/."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capsweep.bench import conditions
from capsweep.bench.measured import Measured, Report
from capsweep.errors import UserError
from capsweep.files import write_text
from capsweep.report import between, grid

BARS = ("what", "measured", "must", "stretch", "")


def as_json(name: str, report: Report, under: Mapping[str, Any]) -> dict[str, Any]:
    """All that is known, numbers as numbers."""
    return {
        "bench": name,
        "measured": [measured.as_json() for measured in report.measured],
        "timings": [dict(row) for row in report.timings],
        "limits": dict(report.limits),
        "notes": list(report.notes),
        "conditions": dict(under),
    }


def markdown(name: str, report: Report, under: Mapping[str, Any]) -> str:
    """The section of a page: conditions, bars, timings, notes."""
    parts = [f"`capsweep bench {name}`, {conditions.told(under)}"]
    parts += [f"Measured limits: {_limits(report)}."] if report.limits else []
    parts += [grid.pipes(header, rows) for header, rows in tables(report)]
    return "\n\n".join([*parts, *report.notes]) + "\n"


def tables(report: Report) -> list[tuple[Sequence[str], list[Sequence[str]]]]:
    """Header and rows of each table: the bars, then the timings."""
    found: list[tuple[Sequence[str], list[Sequence[str]]]] = []
    if report.measured:
        found.append((BARS, [_bar(measured) for measured in report.measured]))
    if report.timings:
        header = list(report.timings[0])
        found.append((header, [[number(row[name]) for name in header] for row in report.timings]))
    return found


def check_page(where: Path, name: str) -> None:
    """Raise UserError now, not after minutes of measuring, unless the page has a place for it."""
    between.replaced(_read(where), f"bench {name}", "", where)


def publish(where: Path, name: str, section: str) -> None:
    """Put the section into the page; every other byte of it stays."""
    write_text(where, between.replaced(_read(where), f"bench {name}", section, where))


def _read(where: Path) -> str:
    page = between.read(where)
    if page is None:
        raise UserError(f"{where} is not there; --publish names an existing page")
    return page


def _limits(report: Report) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in report.limits.items())


def _bar(measured: Measured) -> tuple[str, ...]:
    value = grid.MISSING if measured.value is None else f"{number(measured.value)} {measured.unit}"
    bar, stretch = measured.bound(measured.bar), measured.bound(measured.stretch)
    return measured.what, value, bar, stretch, measured.told()


def number(value: Any) -> str:
    """Three digits, or all before the point."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return grid.written(value)
