"""What `make bench` measures: numbers beside the bars they are held to, as tables, JSON, or a page.

A benchmark is a function `measure_NAME` of a module here, which returns a BenchReport; its module's
QUICK has the arguments with which it only shows that it runs.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from pydantic_core import from_json, to_json

from capsweep.config import code_identity, package_files
from capsweep.report import grid, publish
from capsweep.training import provenance

THREADS = 2  # of the bars: two cores


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
        """Return kept, missed, skipped or no bar."""
        if self.skipped is not None:
            return "skipped"
        if self.bar is None or self.value is None:
            return "no bar"
        is_kept = self.value >= self.bar if self.at_least else self.value <= self.bar
        return "kept" if is_kept else "missed"

    def as_row(self) -> tuple[str, ...]:
        """Return the columns of the table of bars."""
        value = grid.MISSING if self.value is None else f"{_format(self.value)} {self.unit}"
        side = "at least" if self.at_least else "at most"
        bar = "" if self.bar is None else f"{side} {self.bar:g}"
        words = {"skipped": f"skipped: {self.skipped}", "missed": "MISSED", "no bar": ""}
        return self.what, value, bar, words.get(self.verdict, self.verdict)


@dataclass(frozen=True)
class BenchReport:
    """Numbers beside their bars, and the timings they come from.

    timings: rows of tables; neighbours with the same names in the same order are one. faults: why
    candidates could not be measured, by name, which is a bar of its own; None: nothing can fail.
    """

    measured: Sequence[Measured]
    timings: Sequence[Mapping[str, Any]] = ()
    faults: Mapping[str, str] | None = None

    @property
    def bars(self) -> list[Measured]:
        """Return all that is measured, with the number of faults."""
        what = "candidates that fail, or differ from the reference"
        faults = [] if self.faults is None else [Measured(what, float(len(self.faults)), "", 0)]
        return [*self.measured, *faults]

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """Return the timings, and a row for each fault."""
        faults = self.faults or {}
        return [*self.timings, *({"not measured": n, "cause": c} for n, c in faults.items())]

    def as_json(self, name: str, conditions: Mapping[str, Any]) -> dict[str, Any]:
        """Return all that is known; a number that is not finite is a word, as JSON has none."""
        measured = [asdict(bar) | {"verdict": bar.verdict} for bar in self.bars]
        content = {"bench": name, "measured": measured, "timings": self.rows}
        return from_json(to_json(content | {"conditions": conditions}, inf_nan_mode="strings"))

    def make_tables(self) -> list[tuple[Sequence[str], list[Sequence[str]]]]:
        """Return header and rows of each table: the bars, then the timings."""
        bars = [bar.as_row() for bar in self.bars]
        tables: list[Any] = [(("what", "measured", "must", ""), bars)]
        for header, rows in groupby(self.rows, key=list):
            tables.append((header, [[_format(row[name]) for name in header] for row in rows]))
        return tables

    def publish(self, page: Path, name: str, conditions: Mapping[str, Any]) -> None:
        """Put the section of a benchmark into the page; every other byte of it stays."""
        parts = [f"`capsweep bench {name}`, {describe_conditions(conditions)}."]
        parts += [grid.pipe_table(header, rows) for header, rows in self.make_tables()]
        publish.renew_section(page, _name_section(name), "\n\n".join(parts) + "\n")


def _format(value: Any) -> str:
    """Return three digits, or all before the point."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return grid.format_value(value)


def check_page(page: Path, name: str) -> None:
    """Raise UserError now, not after minutes of measuring, unless the page has a place for it."""
    publish.renew_section(page, _name_section(name), None)


def _name_section(name: str) -> str:
    """Return the section of a benchmark; that of a GPU stands beside that of a processor."""
    return f"bench {name} on a GPU" if is_gpu() else f"bench {name}"


def get_device() -> torch.device:
    """Return a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def is_gpu() -> bool:
    """Return whether the benchmarks run on a GPU."""
    return get_device().type == "cuda"


def reason_to_skip() -> str | None:
    """Return why a bar for two cores is not judged here; None where it is."""
    return f"the bar is for {THREADS} cores, this is a GPU" if is_gpu() else None


def time_call(call: Callable[[], object]) -> float:
    """Return the seconds that one call takes, its work on the device included."""
    _wait_for_gpu()
    started = time.perf_counter()
    call()
    _wait_for_gpu()
    return time.perf_counter() - started


def _wait_for_gpu() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def read_conditions() -> dict[str, Any]:
    """Return device, load, code and settings, before the benchmark itself loads the machine."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "device": get_device().type,
        "threads": THREADS,
        "load": os.getloadavg()[0],
        "hardware": provenance.describe_hardware(),
        "versions": provenance.list_versions(),
        "code": {**package_files.describe_code(), "package": code_identity.hash_package()},
    }


def describe_conditions(conditions: Mapping[str, Any]) -> str:
    """Return one line for people; the JSON has the rest."""
    hardware, code = conditions["hardware"], conditions["code"]
    commit = code["commit"][:12] if code["commit"] else f"{code['package']} of no checkout"
    commit += ", changed" if code["dirty"] else ""
    processor = f"{hardware['processor']} with {hardware['capability']}"
    devices = ", ".join([*hardware["gpus"], processor])
    return (
        f"{conditions['when'][:10]}, code {commit}, {devices}, {hardware['cores']} cores, "
        f"load {conditions['load']:.2f}, torch {conditions['versions']['torch']}"
    )
