"""A sweep, and results of its cells that never ran."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep.ledger.ledger import folder_of
from capsweep.sweep import choices, expand
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

Filled = Callable[[Point, float], None]


@pytest.fixture
def ablation() -> tuple[Sweep, list[Point]]:
    """`make sweep ROUTING=3`: three rows of three seeds."""
    sweep = choices.load_sweep("ablation", choices.Choices(routing="3"))
    return sweep, expand.expand_sweep(sweep)


@pytest.fixture
def fill(tmp_path: Path) -> Filled:
    """Writes the result of a cell into the ledger at tmp_path."""

    def write(point: Point, error: float) -> None:
        path = Path(tmp_path) / folder_of(point.cell.signature)
        path.mkdir(parents=True)
        (path / "result.json").write_text(json.dumps({"metrics": {"test/error": error}}))

    return write
