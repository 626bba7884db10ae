"""The plan of a sweep: what is due, what cells will take, parts of an array."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import job_queues
import pytest
import torch
from reported_cells import finish

from capsweep.config import code_identity, compose, places
from capsweep.config.cell import Cell
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import Entry, Ledger
from capsweep.sweep import choices, drive, expand, plan
from capsweep.sweep.estimates import Estimates, calibrate_cells, read_estimates
from capsweep.sweep.expand import Point
from capsweep.training import provenance
from capsweep.training.size import STEPS, Size, calibrate

ONE_STEP = ("epochs=1", "dataset.validation=0", "batch_size=1437")
MISSING = Entry("missing")


@pytest.fixture(scope="module")
def points() -> list[Point]:
    return expand.expand_sweep(choices.load_sweep("ablation", {}))


def test_the_plan_is_due_what_is_not_done_and_knows_parameters_without_memory_for_them(
    points: list[Point], tmp_path: Path
) -> None:
    code = {"numerics": code_identity.hash_numerics(points[0].cell.config)}
    finish(tmp_path, points[0], 0.1, code=code)
    Ledger(tmp_path).note_failure(points[1].cell.signature, "lost")
    planned = plan.make_plan(points, Ledger(tmp_path))
    found = [cell.entry.status for cell in planned.cells]
    assert found == ["done", "failed", *["missing"] * 13]
    assert [cell.points[0] for cell in planned.cells if cell.is_due()] == points[1:]
    assert {cell.size.parameters for cell in planned.cells} == {516_690, 705_888, 961_008}


def test_a_result_of_other_code_is_stale_and_counts_unless_asked_otherwise(
    tmp_path: Path,
) -> None:
    for rerun, due in (("never", False), ("stale", True), ("always", True)):
        cell = compose.cell([f"rerun={rerun}"])
        point = Point("arm", "arm", 0, cell)
        finish(tmp_path / rerun, point, 0.1, code={"numerics": "another"})
        planned = plan.make_plan([point], Ledger(tmp_path / rerun))
        assert planned.cells[0].entry.status == "stale"
        assert planned.cells[0].is_due() is due


def test_a_network_that_cannot_be_built_names_the_place_and_the_key(tmp_path: Path) -> None:
    cell = compose.cell(["model.conv.kernel=28"])
    with pytest.raises(ConfigError, match=r"too big: model\.\w+\.kernel.* not fit "):
        plan.make_plan([Point("too big", "too big", 0, cell)], Ledger(tmp_path))


SAME = ("seed=5", "epochs=3", "optim.optimizer.lr=0.1", "limit_batches=2", "dataset.shift=0")
OTHER = (
    *("batch_size=7", "routing.num_iters=1", "model=capsnet", "precision=bf16-mixed"),
    *("loss.reconstruction.weight=0", "trainer.threads=2"),
)


@pytest.mark.parametrize("override", [*SAME, "loss.reconstruction.weight=0.1", *OTHER])
def test_what_changes_work_changes_the_shape(override: str) -> None:
    is_other = compose.cell([override]).shape != compose.cell([]).shape
    assert is_other == (override in OTHER)


def test_a_calibration_leaves_nothing_behind(small_cell: Callable[..., Cell]) -> None:
    cell = small_cell()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    threads = torch.get_num_threads()
    node = places.resolve(cell.config["places"])
    measured = calibrate(cell, node)
    assert torch.equal(torch.rand(1), expected)
    assert torch.get_num_threads() == threads
    assert not Path(node.ledger).exists()
    assert measured.steps == STEPS
    assert measured.shape == cell.shape
    assert measured.seconds_per_step > 0
    estimates = Estimates("elsewhere")
    estimates.add_measurement(measured)
    assert (estimates.seconds(cell) or 0) > measured.startup_seconds


def test_results_count_before_calibrations_and_this_hardware_before_others() -> None:
    cell = compose.cell(ONE_STEP)
    base = {"shape": cell.shape, "steps": 10, "epochs": 10}
    estimates = Estimates("node")
    assert estimates.seconds(cell) is None
    slow = {"seconds_per_step": 100.0, "evaluation_seconds_per_image": 0.0, "startup_seconds": 0.0}
    one = job_queues.make_measurement(1, name=cell.shape)
    estimates.add_measurement(one.model_copy(update=slow | {"hardware": "node"}))
    assert estimates.seconds(cell) == 100.0
    estimates.add({**base, "hardware": "there", "seconds": {"fit": 500.0, "total": 501.0}})
    assert estimates.seconds(cell) == 51.0
    for fit in (10.0, 20.0, 20.0, 20.0, 90.0):  # one machine slept
        estimates.add({**base, "hardware": "node", "seconds": {"fit": fit, "total": fit + 3}})
    assert estimates.seconds(cell) == 5.0
    estimates.add({"seconds": {"fit": 1.0, "total": 1.0}, "steps": 1})  # of an older ledger
    assert estimates.seconds(cell) == 5.0


def test_a_plan_says_what_time_is_known_and_for_which_cells_it_is_not(tmp_path: Path) -> None:
    words = [*ONE_STEP, f"places.storage={tmp_path}"]
    known, other = (compose.cell([*words, f"routing.num_iters={n}"]) for n in (1, 2))
    planned = plan.Plan(tuple(_planned(cell, MISSING) for cell in (known, other)))
    costs = read_estimates(Ledger(tmp_path), planned.entries)
    assert "2 cells; make plan ARGS=--calibrate" in plan.describe_costs(planned, costs)[0]
    ended = {"shape": known.shape, "steps": 1, "hardware": provenance.name_hardware()}
    costs.add({**ended, "seconds": {"fit": 3600.0, "total": 3600.0}})
    (line,) = plan.describe_costs(planned, costs)
    unknown = "unknown for 1 cell; make plan"
    assert re.match(
        rf"time: about 60 min on \d+ [CG]PU slots? here, [\d.]+ [CG]PU-hours; {unknown}", line
    )
    sweep = choices.load_sweep("ablation", {})
    for cells, seconds in ((planned.cells, 3600), (planned.cells[1:], None)):
        content = json.loads(plan.as_json(sweep, plan.Plan(cells), costs))
        assert (content["estimated_seconds_due"], content["due_without_estimate"]) == (seconds, 1)


def test_cells_of_a_cluster_are_estimated_by_its_hardware_and_not_the_drivers(
    tmp_path: Path,
) -> None:
    words = [*ONE_STEP, f"places.storage={tmp_path}"]
    local, remote = (compose.cell([*words, f"cluster.address={at}"]) for at in ("null", "far:1"))
    ledger, base = Ledger(tmp_path), {"shape": local.shape, "steps": 10, "epochs": 10}
    where = places.resolve(local.config["places"])
    mine = {**base, "hardware": provenance.name_hardware(), "seconds": {"fit": 20.0, "total": 23.0}}
    other = {**base, "hardware": "a fast GPU", "seconds": {"fit": 10.0, "total": 11.0}}
    lines: list[str] = []
    console = SimpleNamespace(out=lines.append)
    unknown = read_estimates(ledger, [(remote, MISSING)])
    calibrate_cells(unknown, [remote], ledger, where, console)
    assert "far:1" in lines[0]
    assert unknown.seconds(remote) is None
    for cell, expected in ((local, 5.0), (remote, 2.0)):
        costs = read_estimates(ledger, [(cell, Entry("done", mine))])
        assert costs.seconds(cell) == 5.0  # nothing else is known
        costs.add(other)
        assert costs.seconds(cell) == expected
        calibrate_cells(costs, [cell], ledger, where, console)
    assert len(lines) == 1, "what has an estimate needs no calibration"


def _planned(cell: Cell, entry: Entry) -> plan.PlannedCell:
    point = Point("arm", "title", 0, cell)
    return plan.PlannedCell((point,), Size(1, 1), entry)


def test_the_parts_of_an_array_are_the_whole_each_cell_once_and_even(tmp_path: Path) -> None:
    sweep = choices.load_sweep("ablation", {"SEEDS": "4"})
    cells = plan.make_plan(expand.expand_sweep(sweep), Ledger(tmp_path)).cells
    parts = [drive.select_part(cells, (i, 3)) for i in (1, 2, 3)]
    together = [cell.cell.signature for part in parts for cell in part]
    assert sorted(together) == sorted(cell.cell.signature for cell in cells)
    loads = [sum(drive._count_flops(cell) for cell in part) for part in parts]
    assert max(loads) <= min(loads) + max(map(drive._count_flops, cells))
    finished = [replace(c, entry=replace(c.entry, status="done", result={})) for c in cells[:5]]
    again = drive.select_part([*finished, *cells[5:]], (2, 3))
    assert [c.cell.signature for c in again] == [c.cell.signature for c in parts[1]]


@pytest.mark.parametrize("count", [2, 3])
def test_each_part_of_an_array_has_cells_of_each_seed(count: int, tmp_path: Path) -> None:
    """So all jobs have work if only the cells of a new seed are missing."""
    sweep = choices.load_sweep("ablation", {"SEEDS": "4"})
    cells = plan.make_plan(expand.expand_sweep(sweep), Ledger(tmp_path)).cells
    for seed in range(4):
        of_seed = [cell for cell in cells if cell.cell.config["seed"] == seed]
        parts = [drive.select_part(cells, (i, count)) for i in range(1, count + 1)]
        shares = [sum(cell in part for cell in of_seed) for part in parts]
        assert max(shares) <= min(shares) + 1, (seed, shares)
