"""Sweeps, and results of their cells that never ran."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from capsweep.ledger import stored_files
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.report import render, table
from capsweep.report.table import ResultTable
from capsweep.sweep import choices, expand
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep


@dataclass
class FilledSweep:
    """A sweep, and a ledger with the results of some of its cells."""

    sweep: Sweep
    points: list[Point]
    ledger: Ledger

    def folder_of(self, number: int) -> Path:
        """Of the cell of a point."""
        path = Path(self.ledger.store.root) / folder_of(self.points[number].cell.signature)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def fill(self, *errors: float) -> None:
        """Give the first cells their test errors."""
        for number, error in enumerate(errors):
            self.finish(number, {"test/error": error})

    def finish(self, number: int, metrics: dict[str, float], **others: Any) -> None:
        """Write the result of a cell."""
        content = json.dumps(stored_files.with_digests({"metrics": metrics, **others}, {}))
        (self.folder_of(number) / "result.json").write_text(content)

    def build(self, **named: Any) -> ResultTable:
        """The table."""
        return table.build_table(self.sweep, self.points, self.ledger, **named)

    def render(self, **named: Any) -> str:
        """The table as Markdown."""
        return render.render_markdown(self.build(**named))

    def rows(self) -> list[list[str]]:
        """Fields of the body of the Markdown table."""
        lines = [line for line in self.render().splitlines() if line.startswith("|")][2:]
        return [[field.strip() for field in line.strip("|").split("|")] for line in lines]


@pytest.fixture
def choose(tmp_path: Path) -> Callable[..., FilledSweep]:
    """Chooses a sweep by name and options; its ledger is at tmp_path."""

    def load(name: str, overrides: Sequence[str] = (), **words: str) -> FilledSweep:
        typed = {word.upper(): value for word, value in words.items()}
        sweep = choices.load_sweep(name, typed, overrides)
        return FilledSweep(sweep, expand.expand_sweep(sweep), Ledger(tmp_path))

    return load


@pytest.fixture
def ablation(choose: Callable[..., FilledSweep]) -> FilledSweep:
    """`make sweep ROUTING=3`: three rows of three seeds."""
    return choose("ablation", routing="3")
