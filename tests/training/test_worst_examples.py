"""The worst test examples of a cell are kept with their pictures when it ends."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.data.batches import Batch
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.ledger.ledger import Ledger
from capsweep.tracking import content as tables
from capsweep.training import fit
from capsweep.training.run import run


class Grey:
    """Test examples of one intensity each: its index, over or under what a picture can have."""

    def __init__(self, channels: int = 1, scale: float = 0.01, start: float = 0.0) -> None:
        self.channels, self.scale, self.start = channels, scale, start

    def evaluation_batch(self, part: slice) -> Batch:
        images = torch.full((1, self.channels, 6, 6), self.start)
        images[:, :, 0, 0] += part.start * self.scale
        return Batch(images, torch.zeros(1, dtype=torch.int64))


def written(folder: Path, scores: np.ndarray, labels: np.ndarray, test: Grey) -> dict:
    fit.write_worst_examples(CellDirectory(folder), scores, labels, test)
    with np.load(folder / "evals" / "worst-examples.npz", allow_pickle=False) as file:
        return dict(file)


def test_a_finished_cell_has_its_worst_examples(
    small_cell: Callable[..., Cell], data_of: Callable[[str], Ledger]
) -> None:
    cell = small_cell("epochs=1")
    run(cell, places.resolve(cell.config["places"]))
    ledger = data_of(cell.signature)
    content = ledger.read(cell.signature, "evals/worst-examples.npz")
    predictions = ledger.read(cell.signature, "predictions.npz")
    with np.load(io.BytesIO(content)) as file, np.load(io.BytesIO(predictions)) as known:
        assert len(file["indices"]) == fit.WORST_COUNT
        np.testing.assert_array_equal(file["scores"], known["scores"][file["indices"]])
        np.testing.assert_array_equal(file["labels"][:, 0], known["labels"][file["indices"]])
        assert (file["labels"] != file["predictions"]).all()
        assert file["images"].shape == (fit.WORST_COUNT, 1, 28, 28)
        assert file["images"].max() == 255
    sheet = Image.open(io.BytesIO(ledger.read(cell.signature, "evals/worst-examples.png")))
    assert len(sheet.getcolors(maxcolors=100_000)) > 50


@pytest.fixture(params=["disk", "bucket"])
def data_of(request: pytest.FixtureRequest, storage: Path, monkeypatch) -> Callable[[str], Ledger]:
    """The ledger in which the cells of this test are: a disk, or as an object store is."""
    if request.param == "bucket":
        whole = places.resolve

        def as_bucket(known: dict) -> places.Places:
            found = whole(known)
            Path(found.ledger).mkdir(parents=True, exist_ok=True)
            return replace(found, ledger=f"file://{found.ledger}")

        monkeypatch.setattr(places, "resolve", as_bucket)
    root = "" if request.param == "disk" else "file://"
    return lambda signature: Ledger(f"{root}{storage / 'ledger'}")


def test_a_network_without_a_mistake_has_none(tmp_path: Path) -> None:
    file = written(tmp_path, np.eye(3), np.arange(3), Grey())
    assert file["images"].shape == (0, 1, 6, 6)
    assert not (tmp_path / "evals" / "worst-examples.png").exists()


def test_pictures_are_those_of_the_examples(tmp_path: Path) -> None:
    scores, labels = np.eye(3)[[0, 1, 2, 1]], np.array([0, 2, 2, 0])
    file = written(tmp_path, scores, labels, Grey(scale=0.2))
    assert file["indices"].tolist() == [1, 3]
    assert file["images"][:, 0, 0, 0].tolist() == [51, 153]


def test_the_caption_says_how_many_of_all_mistakes_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "WORST_COUNT", 2)
    file = written(tmp_path, np.eye(3)[[0, 1, 2, 1]], np.array([0, 2, 1, 0]), Grey())
    assert str(file["caption"]).startswith("2 of 3 wrongly classified test examples")
    file = written(tmp_path, np.eye(3), np.arange(3), Grey())
    assert str(file["caption"]) == "no test example is classified wrongly"
    scores = np.vstack([np.eye(3)[:2], [np.nan, 0, 0]])
    file = written(tmp_path, scores, np.array([0, 2, 2]), Grey())
    assert str(file["caption"]).startswith("1 of 1 wrongly classified test examples")
    assert "left out: 1 examples with scores that are no finite numbers" in str(file["caption"])


def test_the_caption_changes_no_table(tmp_path: Path) -> None:
    file = written(tmp_path, np.eye(3)[[0, 1]], np.array([0, 2]), Grey())
    without = {name: array for name, array in file.items() if name != "caption"}
    for images in (True, False):
        assert tables.worst_table(file, images).digest == tables.worst_table(without, images).digest


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_intensities_beyond_a_pictures_are_stretched(tmp_path: Path, channels: int) -> None:
    scores, labels = np.eye(3)[[0, 1]], np.array([0, 2])
    file = written(tmp_path, scores, labels, Grey(channels, scale=3.0, start=-1.0))
    assert file["images"].shape == (1, channels, 6, 6)
    assert file["images"][0, :, 0, 0].tolist() == [255] * channels
    assert file["images"][0, :, 1, 1].tolist() == [0] * channels
    with Image.open(tmp_path / "evals" / "worst-examples.png") as sheet:
        assert sheet.mode == "RGB"


def test_a_cell_on_a_processor_took_no_gpu(small_cell: Callable[..., Cell]) -> None:
    cell = small_cell("epochs=1")
    result = run(cell, places.resolve(cell.config["places"]), gpus=0.25)
    assert result["gpu_hours"] == 0.0
