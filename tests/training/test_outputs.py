"""What a cell leaves at its end beside metrics: first activations, and its worst examples."""

import io
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from trained_cells import find_folder, read_outputs, train

from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.data.batches import Batch
from capsweep.ledger.cell_directory import CellDirectory
from capsweep.training import fit
from capsweep.training.fit import QUANTILES, measure_quantiles

TINY = ["dataset=digits", "debug=fast", "batch_size=8"]


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        ("matrix_capsnet_tiny", {"primary", "capsules.0", "capsules.1", "classes"}),
        ("capsnet_small", {"primary", "classes"}),
        ("cnn_small", set()),
    ],
)
def test_the_result_has_the_quantiles_of_every_layer_of_capsules(
    model: str, layers: set[str], tmp_path: Path
) -> None:
    cell = compose.cell([*TINY, f"model={model}", f"places.storage={tmp_path}"])
    found = train(cell)["first_activations"]
    assert layers <= set(found)
    assert bool(layers) == bool(found)
    for layer in found.values():
        assert list(layer) == ["q0", "q10", "q25", "q50", "q75", "q90", "q100"]
        assert all(low <= high for low, high in pairwise(layer.values()))
        assert 0 <= layer["q0"] <= layer["q100"] <= 1


@pytest.mark.parametrize("size", [1, 7, 2**24 + 1])
def test_quantiles_are_of_any_number_of_capsules(size: int) -> None:
    values = torch.arange(size).remainder(5).float()  # of the last, too many for torch.quantile
    expected = torch.quantile(values[: 2**24], torch.tensor(QUANTILES)).tolist()
    assert list(measure_quantiles(values).values()) == pytest.approx(expected, abs=1e-6)


def test_a_finished_cell_has_its_worst_examples(small_cell: Callable[..., Cell]) -> None:
    cell = small_cell("epochs=1")
    train(cell)
    folder, (_, known) = find_folder(cell) / "evals", read_outputs(cell)
    with np.load(folder / "worst-examples.npz") as file:
        assert len(file["indices"]) == fit.WORST_COUNT
        np.testing.assert_array_equal(file["labels"][:, 0], known["labels"][file["indices"]])
        assert (file["labels"] != file["predictions"]).all()
    sheet = Image.open(io.BytesIO((folder / "worst-examples.png").read_bytes()))
    assert len(sheet.getcolors(maxcolors=100_000)) > 50


def test_pictures_and_caption_are_those_of_the_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Grey:
        """Test examples of one intensity each, a hundredth of its index."""

        def evaluation_batch(self, part: slice) -> Batch:
            images = torch.full((1, 2, 6, 6), part.start / 100)
            images[..., 0] = -1  # which no picture can have
            return Batch(images, torch.zeros(1, dtype=torch.int64))

    monkeypatch.setattr(fit, "WORST_COUNT", 1)
    directory, evals, names = CellDirectory(tmp_path), tmp_path / "evals", ["cat", "dog", "owl"]
    fit.write_worst_examples(directory, np.eye(3), np.arange(3), Grey(), names)
    assert not evals.exists()  # none is classified wrongly
    scores, labels = np.eye(3)[[0, 1, 2, 1]], np.array([0, 2, 2, 0])
    fit.write_worst_examples(directory, scores, labels, Grey(), names)
    with np.load(evals / "worst-examples.npz") as file:
        assert file["indices"].tolist() == [1]
        assert str(file["caption"]).startswith("1 of 2 wrongly classified test examples")
        assert str(file["caption"]).endswith("predicted for it: owl as dog")
    assert Image.open(evals / "worst-examples.png").convert("L").getextrema() == (0, 255)
