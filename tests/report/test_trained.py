"""How the cells of a published table were trained, in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.report import publish, table
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

Filled = Callable[[Point, float], None]
CODE = {"code": {"commit": "a" * 40}}
EPYC = {"processor": "AMD EPYC", "gpus": []}
WITH_GPU = {"processor": "AMD EPYC", "gpus": ["NVIDIA H200"]}


@pytest.fixture
def sentence(ablation: tuple[Sweep, list[Point]], tmp_path: Path) -> Callable[[], str]:
    """What is told of the table of the cells that are there by now."""
    sweep, points = ablation
    ledger = Ledger(tmp_path)
    return lambda: publish.describe_training(
        publish.collect_training(table.build_table(sweep, points, ledger), ledger)
    )


@pytest.fixture
def train(
    ablation: tuple[Sweep, list[Point]], fill: Filled, tmp_path: Path
) -> Callable[[int, object, list[float]], None]:
    """Leaves the files of a cell: its number in the sweep, its making, its epochs' seconds."""

    def write(number: int, made: object, seconds: list[float]) -> None:
        point = ablation[1][number]
        fill(point, 0.01)
        folder = tmp_path / folder_of(point.cell.signature)
        (folder / "provenance.json").write_text(json.dumps(made))
        rows = [{"epoch": epoch, "seconds": one} for epoch, one in enumerate(seconds)]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    return write


def test_without_a_finished_cell_there_is_nothing_to_tell(sentence: Callable[[], str]) -> None:
    assert sentence() == "printed this; no cell was finished"


def test_cells_of_an_installation_name_its_version_and_no_more_than_is_known(
    ablation: tuple[Sweep, list[Point]], fill: Filled, sentence: Callable[[], str]
) -> None:
    fill(ablation[1][0], 0.01)
    assert sentence() == "printed this, from 1 cell, by capsweep of unknown version, no checkout"


def test_epochs_and_their_time_are_counted_over_all_cells(
    train: Callable[[int, object, list[float]], None], sentence: Callable[[], str]
) -> None:
    for number in range(2):
        made = {**CODE, "hardware": EPYC, "started": "2026-11-01T10:00:00+00:00"}
        train(number, made, [1800.0, 150.0])
    assert sentence() == (
        "printed this, from 2 cells of 2 epochs, trained 2026-11-01 in 1 h 05 min of cells on "
        "AMD EPYC, by commit aaaaaaaaaaaa"
    )


def test_cells_of_unequal_epochs_and_machines_are_told_as_such(
    train: Callable[[int, object, list[float]], None], sentence: Callable[[], str]
) -> None:
    train(0, {**CODE, "hardware": WITH_GPU}, [1.0])
    train(1, {**CODE, "hardware": EPYC}, [1.0] * 3)
    assert sentence() == (
        "printed this, from 2 cells of 1 to 3 epochs, trained in 4.0 s of cells on AMD EPYC, "
        "NVIDIA H200, by commit aaaaaaaaaaaa"
    )
