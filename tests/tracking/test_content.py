"""What W&B should have of a cell is read from the ledger alone, and a mark says that it has it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.ledger.ledger import Ledger
from capsweep.tracking import content, tables
from capsweep.tracking.labels import Labels
from capsweep.training.run import run

LABELS = Labels("ablation", "capsnet", "capsnet · T=3 · seed 0", "Does it?", ("ablation", "digits"))


def finished(cell: Cell) -> tuple[Ledger, str]:
    """A cell that was trained, and its ledger."""
    here = places.resolve(cell.config["places"])
    run(cell, here, labels=LABELS)
    return Ledger(here.ledger), cell.signature


def test_everything_of_a_finished_cell_is_in_the_ledger(small_cell: Callable[..., Cell]) -> None:
    found = content.read_content(*finished(small_cell()))
    assert (found.status, found.cause, found.mode) == ("finished", None, "none")
    assert found.labels == LABELS
    assert [row["epoch"] for row in found.rows] == [0, 1]
    assert found.rows[-1]["train/loss"] == found.summary["train/loss"]
    assert found.summary["params"] > 0
    assert {"test/error", "images_per_second", "gpu_hours"} <= set(found.summary)
    assert found.config["routing.num_iters"] == 3
    assert found.tables == (tables.CONFUSION, tables.WORST)
    assert list(found.pictures) == ["worst-examples.png"]


def test_a_failed_cell_has_its_rows_and_its_cause(small_cell: Callable[..., Cell]) -> None:
    cell = small_cell("epochs=1", "stop_accuracy=1.0", "dataset.validation=9")
    with pytest.raises(Exception, match="stop_accuracy"):
        finished(cell)
    found = content.read_content(Ledger(cell.config["places"]["ledger"]), cell.signature)
    assert found.status == "failed"
    assert "stop_accuracy" in str(found.cause)
    assert found.summary["train/loss"] == found.rows[-1]["train/loss"]


def test_a_picture_of_an_evaluation_changes_what_there_is_to_send(
    small_cell: Callable[..., Cell],
) -> None:
    ledger, signature = finished(small_cell("epochs=1"))
    before = content.read_content(ledger, signature)
    assert list(before.pictures) == ["worst-examples.png"]
    ledger.write_evaluation(signature, "segmentation.png", b"picture")
    ledger.write_evaluation(signature, "segmentation.json", b"{}")
    after = content.read_content(ledger, signature)
    assert list(after.pictures) == ["segmentation.png", "worst-examples.png"]
    assert after.digest != before.digest


def test_a_mark_is_of_one_content_at_one_server(
    small_cell: Callable[..., Cell], storage: Path
) -> None:
    found = content.read_content(*finished(small_cell("epochs=1")))
    assert not content.is_synced(storage, found, "http://one")
    content.write_mark(storage, found, "http://one")
    assert content.is_synced(storage, found, "http://one")
    assert content.is_synced(storage, replace(found, mode="online"), "http://one")
    assert not content.is_synced(storage, found, "http://two")
    assert not content.is_synced(storage, replace(found, cause="other"), "http://one")
    content.mark_file(storage, found.signature).write_text("{")
    assert not content.is_synced(storage, found, "http://one")
