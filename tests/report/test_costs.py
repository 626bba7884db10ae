"""What the rows of a table cost."""

from pathlib import Path

import pytest
from reported_cells import finish, small_sweep

from capsweep.ledger.ledger import Ledger
from capsweep.report import cells, table
from capsweep.report.cost_figure import RowCosts, collect_costs


def of(folder: Path) -> RowCosts:
    """The costs of the small sweep, with the ledger in the same folder."""
    sweep, points = small_sweep(folder)
    ledger = Ledger(folder)
    answer = table.build_table(sweep, points, ledger)
    return collect_costs(answer, cells.cells_behind(answer, cells.read_cells(points, ledger)))


def test_a_row_costs_the_mean_of_its_seeds_and_has_the_numbers_of_the_table(
    tmp_path: Path,
) -> None:
    _, points = small_sweep(tmp_path)
    finish(tmp_path, points[0], 0.1, seconds={"fit": 1.0, "total": 10.0})
    finish(tmp_path, points[1], 0.3, seconds={"fit": 1.0, "total": 20.0})
    found = of(tmp_path)
    (cost,) = found.of
    assert (cost.name, cost.seconds, cost.parameters) == ("cnn · –", 15.0, 1000)
    assert (cost.mean, cost.std) == (pytest.approx(0.2), pytest.approx(0.02**0.5))
    assert (found.clock, found.hardware, found.unit) == ("wall", ("A processor",), ("seconds", 1.0))


def test_a_row_that_lacks_a_seed_is_left_out(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    finish(tmp_path, points[0], 0.1)
    found = of(tmp_path)
    assert (found.of, found.incomplete) == ((), 3)


def test_device_hours_count_where_every_cell_has_them(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    finish(tmp_path, points[0], 0.1, gpu_hours=0.5)
    finish(tmp_path, points[1], 0.1, gpu_hours=1.5)
    found = of(tmp_path)
    assert (found.clock, found.of[0].seconds, found.unit) == ("GPU", 3600.0, ("hours", 3600.0))
    finish(tmp_path, points[2], 0.1, gpu_hours=0.0)  # it ran on no GPU
    assert of(tmp_path).clock == "wall"


def test_the_hardware_is_all_that_cells_ran_on(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    finish(tmp_path, points[0], 0.1)
    finish(tmp_path, points[1], 0.1, hardware="Another")
    assert of(tmp_path).hardware == ("A processor", "Another")
