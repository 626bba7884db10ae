"""`capsweep eval predict CELL --file X`: what a network says of pictures that a user has."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from trained_cells import finish, load_digits, read_outputs

from capsweep import cli
from capsweep.config.cell import Cell
from capsweep.lab.evaluation.pictures import PictureConverter

MakeCell = Callable[..., Cell]
SHORT = ["epochs=1", "limit_batches=1"]


def predict(cell: Cell, storage: Path, file: Path, *options: str) -> int:
    words = [cell.signature[:8], "--file", str(file), f"STORAGE={storage}", "--device", "cpu"]
    return cli.main(["eval", "predict", *words, *options])


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
    assert "left out: broken.png: it is no image" in printed
    rows = read_table(cell, storage, "own")
    wrong = sum(row["label"] != row["class"] for row in rows)
    assert f"error: {wrong} of 6 (" in printed
    scores = {int(row["image"][2]): [float(row[f"length {c}"]) for c in range(10)] for row in rows}
    scores_MN = np.array([scores[index] for index in range(6)])
    assert scores_MN == pytest.approx(stored["scores"][:6], abs=1e-5)
    assert predict(cell, storage, tmp_path / "own" / str(rows[0]["label"])) == 0
    np.savez(tmp_path / "own.npz", images=255 - pixels)
    assert predict(cell, storage, tmp_path / "own.npz", "--invert") == 0
    inverted = [list(row.values())[2:] for row in read_table(cell, storage, "own-inverted")]
    assert np.array(inverted, float) == pytest.approx(scores_MN, abs=1e-5)
    assert predict(cell, storage, tmp_path / "own.npz") == 0
    assert "brighter than the training images" in capsys.readouterr().out
    assert predict(cell, storage, tmp_path / "absent") == 2
    assert "there is no such file or folder" in capsys.readouterr().err


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


def test_pictures_get_the_size_and_the_channels_of_the_data_set() -> None:
    grey = PictureConverter(1, [(28, 28), (40, 40)], is_inverted=False)
    deep = Image.fromarray(np.full((28, 28), 51 * 257, np.uint16))
    assert (grey.convert(deep) == 51).all()
    clear = Image.new("RGBA", (60, 30), (0, 0, 0, 0))
    assert (grey.convert(clear) == 255).all()
    assert set(grey.counts) == {
        "reduced from 16 to 8 bits",
        "laid on white, because they have transparent parts",
        "made grey",
        "resized to 28x28",
        "stretched, because the shape differs",
    }
    assert grey.convert(Image.new("L", (40, 40))).shape == (1, 40, 40)
    colour = PictureConverter(3, [(32, 32)], is_inverted=False)
    assert colour.convert(np.zeros((32, 32), np.uint8)).shape == (3, 32, 32)
    with pytest.raises(ValueError, match="5 channels"):
        grey.convert(np.zeros((28, 28, 5), np.uint8))
