"""What W&B should have of a cell is read from the ledger alone, and a mark says that it has it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from capsweep.config import compose
from capsweep.ledger.ledger import Ledger
from capsweep.tracking import content
from capsweep.tracking.content import Labels


def test_everything_of_a_finished_cell_is_in_the_ledger(
    train: Callable[..., dict[str, Any]], storage: Path
) -> None:
    ledger, signature = Ledger(storage / "ledger"), train("logger=csv")["signature"]
    cell = content.read_content(ledger, signature)
    assert (cell.status, cell.mode) == ("finished", "none")
    assert (cell.run["group"], cell.run["tags"]) == ("ablation", ["ablation", "digits"])
    assert cell.rows[-1]["train/loss"] == cell.summary["train/loss"]
    assert [(row["step"], "train/loss_step" in row) for row in cell.rows] == [
        *((1, True), (2, True), (2, False)),
        *((3, True), (4, True), (4, False)),
    ]
    assert cell.summary["params"] > 0
    assert {"test/error", "images_per_second", "gpu_hours"} <= set(cell.summary)
    assert cell.run["config"]["routing.num_iters"] == 3
    assert list(cell.pictures) == ["worst-examples.png"]

    assert not content.is_synced(storage, cell, "http://one")
    content.write_mark(storage, cell, "http://one")
    assert content.is_synced(storage, cell, "http://one")
    assert content.is_synced(storage, replace(cell, mode="online"), "http://one")
    assert not content.is_synced(storage, cell, "http://two")
    ledger.write_evaluation(signature, "segmentation.png", b"picture")
    drawn = content.read_content(ledger, signature)
    assert list(drawn.pictures) == ["segmentation.png", "worst-examples.png"]
    assert not content.is_synced(storage, drawn, "http://one")
    content.mark_file(storage, signature).write_text("{")
    assert not content.is_synced(storage, cell, "http://one")


def test_the_digits_of_a_composed_data_set_are_a_column() -> None:
    cell = compose.cell(["dataset=multimnist", "dataset.source=digits"])
    assert content.describe_tracking(cell, Labels())["columns"] == {"dataset.source": "digits"}
