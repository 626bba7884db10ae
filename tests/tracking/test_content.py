"""What W&B should have of a cell is read from the ledger alone, and a mark says that it has it."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.ledger.ledger import Ledger
from capsweep.tracking import content
from capsweep.tracking.labels import Labels
from capsweep.training.run import run

LABELS = Labels("ablation", "capsnet", "capsnet · T=3 · seed 0", "Does it?", ("ablation", "digits"))


def train_cell(cell: Cell) -> tuple[Ledger, str]:
    """A cell that was trained, and its ledger."""
    node_places = places.resolve(cell.config["places"])
    run(cell, node_places, labels=LABELS)
    return Ledger(node_places.ledger), cell.signature


def test_everything_of_a_finished_cell_is_in_the_ledger(
    small_cell: Callable[..., Cell], storage: Path
) -> None:
    ledger, signature = train_cell(small_cell())
    cell = content.read_content(ledger, signature)
    assert (cell.status, cell.cause, cell.mode) == ("finished", None, "none")
    assert {key: cell.run[key] for key in LABELS.to_plain()} == LABELS.to_plain()
    assert [row["epoch"] for row in cell.rows] == [0, 1]
    assert cell.rows[-1]["train/loss"] == cell.summary["train/loss"]
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
    ledger.write_evaluation(signature, "segmentation.json", b"{}")
    drawn = content.read_content(ledger, signature)
    assert list(drawn.pictures) == ["segmentation.png", "worst-examples.png"]
    assert not content.is_synced(storage, drawn, "http://one")
    content.mark_file(storage, signature).write_text("{")
    assert not content.is_synced(storage, cell, "http://one")


def test_a_failed_cell_has_its_rows_and_its_cause(small_cell: Callable[..., Cell]) -> None:
    cell = small_cell("epochs=1", "stop_accuracy=1.0", "dataset.validation=9")
    with pytest.raises(Exception, match="stop_accuracy"):
        train_cell(cell)
    failed = content.read_content(Ledger(cell.config["places"]["ledger"]), cell.signature)
    assert failed.status == "failed"
    assert "stop_accuracy" in str(failed.cause)
    assert failed.summary["train/loss"] == failed.rows[-1]["train/loss"]


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


SCORES = np.eye(3)[[0, 1, 1, 2]]
EXAMPLES = npz(
    indices=np.array([7]),
    labels=np.array([[2, 1]]),
    predictions=np.array([[0, 2]]),
    margins=np.array([0.5]),
    scores=np.array([[0.75, 0.25, 0.5]]),
    images=np.full((1, 1, 4, 4), 9, np.uint8),
)


def make_tables(images: bool = True, **files: bytes) -> list[content.Table]:
    """The tables of a cell that has these files."""
    names = {"scores": content.SCORES, "examples": content.EXAMPLES}
    return list(content.make_tables({names[key]: files[key] for key in files}.get, images))


def test_a_confusion_matrix_counts_every_pair_of_classes() -> None:
    (table,) = make_tables(scores=npz(scores=SCORES, labels=np.array([0, 1, 2, 2])))
    assert (table.name, table.columns) == (content.CONFUSION, content.CONFUSION_COLUMNS)
    counts = {(label, prediction): count for label, prediction, count in table.rows}
    assert len(counts) == 9
    expected = {("0", "0"): 1, ("1", "1"): 1, ("2", "1"): 1, ("2", "2"): 1}
    assert {pair: n for pair, n in counts.items() if n} == expected
    several = np.array([[0, 1], [1, 2], [2, 1], [2, 0]])
    assert make_tables(scores=npz(scores=SCORES, labels=several)) == []


def test_worst_examples_say_what_was_taken_for_what() -> None:
    (table,) = make_tables(examples=EXAMPLES)
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["index"], row["label"], row["prediction"], row["margin"]) == (7, "1 2", "0 2", 0.5)
    assert [row[f"score {n}"] for n in range(3)] == [0.75, 0.25, 0.5]
    assert row["picture"].shape == (1, 4, 4)
    (bare,) = make_tables(examples=EXAMPLES, images=False)
    assert (bare.columns, bare.rows) == (table.columns[:-1], (table.rows[0][:-1],))
