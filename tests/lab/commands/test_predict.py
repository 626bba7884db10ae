"""`capsweep eval predict CELL --file X`: what a network says of pictures that a user has."""

import contextlib
import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from trained_cells import NOT_TESTED, finish, load_digits, read_outputs

from capsweep import cli
from capsweep.config.cell import Cell
from capsweep.lab.evaluation.checkpoint import TrainedCell
from capsweep.lab.evaluation.predictions import Picture, PictureReader

MakeCell = Callable[..., Cell]
IMAGES = "capsweep.data.image_batches.ShiftedImages"
SHORT = ["epochs=1", "limit_batches=1"]


def predict(cell: Cell, storage: Path, file: Path, *options: str) -> int:
    """Types the command without STORAGE in the folder whose `outputs` is the storage."""
    words = [cell.signature[:8], "--file", str(file), "--device", "cpu", *options]
    with contextlib.chdir(storage.parent):
        return cli.main(["eval", "predict", *words])


def read_table(cell: Cell, storage: Path, stem: str) -> list[dict[str, str]]:
    """The table beside a picture that is not blank."""
    folder = storage / "predictions" / cell.signature
    assert (np.asarray(Image.open(folder / f"{stem}.png").convert("L")) < 250).sum() > 3000
    with (folder / f"{stem}.csv").open() as file:
        return list(csv.DictReader(file))


def test_pictures_of_test_images_get_the_scores_of_the_test_and_their_error(
    storage: Path, small_cell: MakeCell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = small_cell(*SHORT)
    finish(cell)
    stored, batch = read_outputs(cell)[1], load_digits().evaluation_batch(slice(0, 6))
    pixels = (255 * batch.images_BCHW[:, 0]).round().byte().numpy()
    for index, (image, label) in enumerate(zip(pixels, batch.labels.tolist(), strict=True)):
        path = tmp_path / "own" / str(label) / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    (tmp_path / "own" / "broken.png").write_bytes(b"no image")
    capsys.readouterr()
    assert predict(cell, storage, tmp_path / "own") == 1
    printed = capsys.readouterr().out
    assert "left out: broken.png: it is no picture" in printed
    rows = read_table(cell, storage, "own")
    wrong = sum(row["label"] != row["class"] for row in rows)
    assert f"error: {wrong} of 6 (" in printed
    scores = {int(row["image"][2]): [float(row[f"length {c}"]) for c in range(10)] for row in rows}
    scores_MN = np.array([scores[index] for index in range(6)])
    assert scores_MN == pytest.approx(stored["scores"][:6], abs=1e-5)
    assert predict(cell, storage, tmp_path / "own" / str(rows[0]["label"])) == 0
    np.savez(tmp_path / "own.npz", images=255 - pixels)
    assert predict(cell, storage, tmp_path / "own.npz", "--invert") == 0
    inverted = [list(row.values())[3:] for row in read_table(cell, storage, "own-inverted")]
    assert np.array(inverted, float) == pytest.approx(scores_MN, abs=1e-5)
    assert predict(cell, storage, tmp_path / "own.npz") == 0
    assert "brighter than the training images" in capsys.readouterr().out
    assert predict(cell, storage, tmp_path / "absent") == 2
    assert "there are no files" in capsys.readouterr().err


def test_a_network_for_two_digits_names_two_classes(
    storage: Path, small_cell: MakeCell, tmp_path: Path
) -> None:
    two = ["dataset=multimnist", "dataset.source=digits", "dataset.batches.test_examples=20"]
    cell = small_cell(*SHORT, *two)
    finish(cell)
    Image.fromarray(np.zeros((36, 36), np.uint8)).save(tmp_path / "pair.png")
    assert predict(cell, storage, tmp_path / "pair.png") == 0
    (row,) = read_table(cell, storage, "pair")
    assert row["class 1"] != row["class 2"]


@pytest.mark.parametrize(("channels", "shown"), [(1, 1), (3, 1), (1, 2)])
def test_pictures_get_the_size_and_the_channels_of_the_data_set(channels: int, shown: int) -> None:
    dataset = {"image_shape": [channels, 40, 40], "labels_per_image": shown, "shift": 0}
    dataset["batches"] = {"_target_": IMAGES, "_partial_": True, "shift": 0, "canvas": 40}
    config, network = {"dataset": dataset}, torch.nn.Identity()
    shape = (channels, 28, 28)
    digits = load_digits()
    cell = TrainedCell("cell", config, network, digits, NOT_TESTED, digits, shape)
    reader, white = PictureReader(cell, is_inverted=False), np.full((3, 60, 30), 255, np.uint8)
    white[0] = 0

    def read(size: tuple[int, int] | None) -> np.ndarray:
        return white if size is None else white[:, :1, :1].repeat(size[0], 1).repeat(size[1], 2)

    image_CHW = reader.read(Picture("a", None, read))[0]
    assert image_CHW.shape == (channels, 40, 40)
    side = 28 if shown == 1 else 40
    assert (image_CHW > 0).sum() == side**2 * (1 if channels == 1 else 2)
    assert reader.changes[f"stretched to {side}x{side} pixels"] == 1
    assert reader.changes["made grey"] == (channels == 1)
    small = Picture("b", None, lambda _: np.ones((1, 28, 28), np.uint8))
    assert (reader.read(small) > 0).sum() == channels * 28**2
