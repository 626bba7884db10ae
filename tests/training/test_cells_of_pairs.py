"""Cells on composed images and on novel viewpoints, from configuration to the ledger."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import official_files
import pytest
import torch
from trained_cells import read_outputs, train

from capsweep.config import compose, places
from capsweep.config.cell import Cell
from capsweep.training import build

TEST_EXAMPLES = 60
PAIRS = [
    "dataset=multimnist",
    "dataset/source=digits",
    f"dataset.batches.test_examples={TEST_EXAMPLES}",
    "dataset.validation=40",
    "batch_size=16",
]


def test_a_cell_is_measured_on_composed_images_in_all_that_pairs_have(
    small_cell: Callable[..., Cell],
) -> None:
    cell = small_cell(*PAIRS)
    result = train(cell)
    splits = build.load_splits(cell.config, "", torch.device("cpu"))
    batch = splits["test"].evaluation_batch(slice(0, TEST_EXAMPLES))
    images = (batch.images_BCHW * 255).round().to(torch.uint8).numpy().tobytes()
    digest = hashlib.sha256(images + batch.labels.to(torch.uint8).numpy().tobytes())
    assert result["test_sha256"] == digest.hexdigest()

    metrics = result["metrics"]
    names = ("loss", "error", "reconstruction", "at_least_one", "segmentation")
    splits = ("train", "val", "test")
    assert set(metrics) == {f"{split}/{name}" for split in splits for name in names}

    scores_MN, labels_ML = (read_outputs(cell)[1][name] for name in ("scores", "labels"))
    # limit_batches counts batches of 500, so that all test images are there.
    np.testing.assert_array_equal(labels_ML, batch.labels.numpy())
    assert scores_MN.shape == (TEST_EXAMPLES, 10)
    active_ML = np.argsort(scores_MN, axis=1)[:, -2:]
    common_M = np.array([len(set(a) & set(b)) for a, b in zip(active_ML, labels_ML, strict=True)])
    assert metrics["test/error"] == pytest.approx(np.mean(common_M < 2), abs=1e-12)
    assert metrics["test/at_least_one"] == pytest.approx(np.mean(common_M > 0), abs=1e-12)


def test_validation_error_is_that_of_familiar_and_test_error_that_of_novel_images(
    tmp_path: Path,
) -> None:
    data = official_files.write_viewpoints(tmp_path / "data", 12, 40)
    here = [f"places.storage={tmp_path / 'outputs'}", f"places.data={tmp_path / 'data'}"]
    fixed = ["batch_size=6", "epochs=3", "logger=csv", "trainer.accelerator=cpu"]
    cell = compose.cell(
        ["model=cnn_small", *data, *here, *fixed, "dataset=smallnorb_azimuth", "stop_accuracy=0.0"]
    )
    result = train(cell)
    assert result["epochs"] == 1  # the familiar error is low enough
    network = build.build_network(cell.config)
    network.load_state_dict(read_outputs(cell)[0])
    network.eval()
    splits = build.build_reader(cell.config).read(places.resolve(cell.config["places"]).data)
    presenter = build.build_presenter(cell.config)
    assert splits.validation is not None
    for name, examples in (("val", splits.validation), ("test", splits.test)):
        batch = presenter(examples, "test").evaluation_batch(slice(0, len(examples)))
        with torch.no_grad():
            classes_N = network(batch.images_BCHW).scores_BN.argmax(1)
        wrong = (classes_N != batch.labels).double().mean()
        assert result["metrics"][f"{name}/error"] == pytest.approx(float(wrong))
