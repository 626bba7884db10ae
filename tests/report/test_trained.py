"""How the cells of a published table were trained, in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.report import table, trained
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

Filled = Callable[[Point, float], None]
COMMIT = "a" * 40


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Where `fill` writes."""
    return Ledger(tmp_path)


@pytest.fixture
def sentence(ablation: tuple[Sweep, list[Point]], ledger: Ledger) -> Callable[[], trained.Training]:
    """What the table of what is there by now was trained by."""
    sweep, points = ablation
    return lambda: trained.of(table.build(sweep, points, ledger), ledger)


def written(ledger: Ledger, point: Point, made: object, seconds: list[float]) -> None:
    """The files of a cell that tell of its training."""
    assert ledger.disk is not None
    folder = ledger.disk / folder_of(point.cell.signature)
    (folder / "provenance.json").write_text(json.dumps(made))
    rows = [{"epoch": number, "seconds": one} for number, one in enumerate(seconds)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_without_a_finished_cell_there_is_nothing_to_tell(
    sentence: Callable[[], trained.Training],
) -> None:
    assert trained.told(sentence()) == "printed this; no cell was finished"


def test_cells_of_an_installation_name_its_version_and_no_more_than_is_known(
    ablation: tuple[Sweep, list[Point]], fill: Filled, sentence: Callable[[], trained.Training]
) -> None:
    fill(ablation[1][0], 0.01)
    assert trained.told(sentence()) == (
        "printed this, from 1 cell, by capsweep of unknown version, no checkout"
    )


def test_epochs_and_their_time_are_counted_over_all_cells(
    ablation: tuple[Sweep, list[Point]],
    fill: Filled,
    ledger: Ledger,
    sentence: Callable[[], trained.Training],
) -> None:
    made = {
        "started": "2026-11-01T10:00:00+00:00",
        "code": {"commit": COMMIT},
        "hardware": {"processor": "AMD EPYC", "gpus": []},
    }
    for point in ablation[1][:2]:
        fill(point, 0.01)
        written(ledger, point, made, [1800.0, 150.0])
    assert trained.told(sentence()) == (
        "printed this, from 2 cells of 2 epochs, trained 2026-11-01 in 1 h 05 min of cells on "
        "AMD EPYC, by commit aaaaaaaaaaaa"
    )


def test_cells_of_unequal_epochs_and_machines_are_told_as_such(
    ablation: tuple[Sweep, list[Point]],
    fill: Filled,
    ledger: Ledger,
    sentence: Callable[[], trained.Training],
) -> None:
    first, second = ablation[1][:2]
    fill(first, 0.01)
    fill(second, 0.01)
    code = {"commit": COMMIT}
    gpu = {"code": code, "hardware": {"processor": "AMD EPYC", "gpus": ["NVIDIA H200"]}}
    written(ledger, first, gpu, [1.0])
    written(ledger, second, {"code": code, "hardware": {"processor": "AMD EPYC"}}, [1.0] * 3)
    assert trained.told(sentence()) == (
        "printed this, from 2 cells of 1 to 3 epochs, trained in 4.0 s of cells on AMD EPYC, "
        "NVIDIA H200, by commit aaaaaaaaaaaa"
    )
