"""The ledger read, and the plan made from it."""

import json
from pathlib import Path

import pytest

from capsweep.config import code_identity, compose
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.sweep import choices, expand, plan
from capsweep.sweep.choices import Choices
from capsweep.sweep.expand import Point


@pytest.fixture(scope="module")
def points() -> list[Point]:
    return expand.expand_sweep(choices.load_sweep("ablation", Choices()))


def finish(ledger: Path, signature: str, code: dict[str, str] | None = None) -> None:
    if code is None:
        code = {"numerics": code_identity.numerics(compose.cell(["model=cnn_small"]).config)}
    path = Path(ledger) / folder_of(signature)
    path.mkdir(parents=True)
    (path / "result.json").write_text(json.dumps({"metrics": {}, "code": code}))


def test_the_plan_is_due_what_is_not_done(points: list[Point], tmp_path: Path) -> None:
    finish(tmp_path, points[0].cell.signature)
    Ledger(tmp_path).note_failure(points[1].cell.signature, "lost")
    planned = plan.make_plan(points, Ledger(tmp_path))
    assert [planned.count_status(s) for s in ("done", "failed", "missing")] == [1, 1, 13]
    assert [cell.points[0] for cell in planned.cells if cell.is_due()] == points[1:]


def test_a_result_of_other_code_is_stale_and_counts_unless_asked_otherwise(
    tmp_path: Path,
) -> None:
    for rerun, due in (("never", False), ("stale", True), ("always", True)):
        cell = compose.cell([f"rerun={rerun}"])
        finish(tmp_path / rerun, cell.signature, {"numerics": "another"})
        planned = plan.make_plan([Point("arm", "arm", 0, cell)], Ledger(tmp_path / rerun))
        assert planned.count_status("stale") == 1
        assert planned.cells[0].is_due() is due


def test_the_plan_knows_parameters_without_memory_for_them(
    points: list[Point], tmp_path: Path
) -> None:
    planned = plan.make_plan(points, Ledger(tmp_path))
    assert {cell.size.parameters for cell in planned.cells} == {516_690, 705_888, 961_008}


def test_equal_cells_are_planned_once(points: list[Point], tmp_path: Path) -> None:
    planned = plan.make_plan([*points, *points[:4]], Ledger(tmp_path))
    assert len(planned.cells) == len(points)
    assert planned.count_equivalent() == 4


def test_a_network_that_cannot_be_built_names_the_place_and_the_key(tmp_path: Path) -> None:
    cell = compose.cell(["model.conv.kernel=28"])
    with pytest.raises(ConfigError, match=r"too big: model\.conv\.kernel .* do not fit"):
        plan.make_plan([Point("too big", "too big", 0, cell)], Ledger(tmp_path))
