"""How planning, reading a ledger and making a table grow with the number of cells."""

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from capsweep.bench.measured import Measured
from capsweep.config import code_identity
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.report import render, table
from capsweep.sweep import choices, expand, plan, spec
from capsweep.sweep.choices import Choices
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep


def growth() -> list[Measured]:
    """A plan of 1,000 cells; a ledger and a table of 10,000."""
    with tempfile.TemporaryDirectory() as folder:
        planning = _seconds(lambda: plan.make(_points(200)[1], Ledger(folder)))
        ledger = Ledger(folder)
        _fill(ledger, _points(2000)[1])
        scan = _seconds(lambda: ledger.entries(ledger.signatures()))
        made = _seconds(lambda: render.markdown(table.build(*_points(2000), ledger)))
        _fill(ledger, _many_rows()[1])
        wide = _seconds(lambda: render.markdown(table.build(*_many_rows(), ledger)))
    return [
        Measured("plan of 1,000 cells", planning, "s", 30),
        Measured("scan of a ledger of 10,000 cells", scan, "s", 5),
        Measured("table of 10,000 cells in 5 rows, their composition included", made, "s", 10),
        Measured("the same in 3,334 rows", wide, "s", 10),
    ]


def _points(seeds: int) -> tuple[Sweep, list[Point]]:
    """The ablation, five places, with many seeds."""
    sweep, variants = choices.apply(spec.load("ablation"), Choices(seeds=str(seeds)))
    return sweep, expand.points(sweep, variants)


def _many_rows() -> tuple[Sweep, list[Point]]:
    """As many cells, three seeds a row."""
    rates = ",".join(str(rate / 1e6) for rate in range(1, 668))
    chosen = Choices(seeds="3", overrides=[f"optim.optimizer.lr={rates}"])
    sweep, _ = choices.apply(spec.load("ablation"), chosen)
    return sweep, expand.points(sweep)


def _fill(ledger: Ledger, points: Sequence[Point]) -> None:
    """Results as cells write them, of cells that never ran."""
    assert ledger.disk is not None
    for number, point in enumerate(points):
        code = {"numerics": code_identity.numerics(point.cell.config)}
        result = {"metrics": {"test/error": number % 97 / 1000}, "code": code, "seconds": {}}
        folder: Path = ledger.disk / folder_of(point.cell.signature)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").write_text(json.dumps(result, indent=2))


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
