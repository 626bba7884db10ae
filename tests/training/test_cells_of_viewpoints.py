"""A cell of novel viewpoints: its validation error is the familiar one, and may end training."""

from collections.abc import Callable
from pathlib import Path

import official_files
import pytest
import torch

from capsweep.config import compose, places
from capsweep.config.cell import Cell
from capsweep.ledger.ledger import folder_of
from capsweep.training import build
from capsweep.training.run import run

TRAIN, TEST = 12, 40


@pytest.fixture
def cell_of(tmp_path: Path) -> Callable[..., Cell]:
    """Three epochs of a small CNN on small files."""

    def make(*overrides: str) -> Cell:
        data = official_files.write_viewpoints(tmp_path / "data", TRAIN, TEST)
        here = [f"places.storage={tmp_path / 'outputs'}", f"places.data={tmp_path / 'data'}"]
        fixed = ["batch_size=6", "epochs=3", "logger=csv", "trainer.accelerator=cpu"]
        return compose.cell(["model=cnn_small", *data, *here, *fixed, *overrides])

    return make


@pytest.mark.parametrize("dataset", ["smallnorb_azimuth", "smallnorb_elevation"])
def test_validation_error_is_that_of_familiar_and_test_error_that_of_novel_images(
    dataset: str, cell_of: Callable[..., Cell]
) -> None:
    cell = cell_of(f"dataset={dataset}")
    here = places.resolve(cell.config["places"])
    metrics = run(cell, here)["metrics"]
    network = build.build_network(cell.config)
    weights = Path(here.ledger) / folder_of(cell.signature) / "weights.ckpt"
    network.load_state_dict(torch.load(weights, weights_only=True))
    network.eval()
    splits = build.build_reader(cell.config).read(str(here.data))
    presenter = build.build_presenter(cell.config)
    assert splits.validation is not None
    for name, examples in (("val", splits.validation), ("test", splits.test)):
        batch = presenter(examples, "test").evaluation_batch(slice(0, len(examples)))
        with torch.no_grad():
            found_N = network(batch.images_BCHW).scores_BN.argmax(1)
        wrong = (found_N != batch.labels).double().mean()
        assert metrics[f"{name}/error"] == pytest.approx(float(wrong))


def test_training_ends_where_the_familiar_error_is_low_enough(
    cell_of: Callable[..., Cell],
) -> None:
    cell = cell_of("dataset=smallnorb_azimuth", "stop_accuracy=0.0")
    result = run(cell, places.resolve(cell.config["places"]))
    assert result["epochs"] == 1
    assert {"val/error", "test/error"} <= set(result["metrics"])
