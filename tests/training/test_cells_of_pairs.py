"""A cell on composed images, from configuration to the ledger."""

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.data.batches import DeviceSplit
from capsweep.data.module import prepare_splits
from capsweep.errors import ConfigError
from capsweep.ledger.ledger import folder_of
from capsweep.training import build
from capsweep.training.run import run

TEST_EXAMPLES = 60
PAIRS = [
    "dataset=multimnist",
    "dataset/source=digits",
    f"dataset.batches.test_examples={TEST_EXAMPLES}",
    "dataset.validation=40",
    "batch_size=16",
]

Made = tuple[Cell, dict[str, Any], Path]


@pytest.fixture
def make(small_cell: Callable[..., Cell]) -> Callable[..., Made]:
    """Runs a small cell: it, its result and its folder."""

    def ran(*overrides: str) -> Made:
        cell = small_cell(*overrides)
        here = places.resolve(cell.config["places"])
        return cell, run(cell, here), Path(here.ledger) / folder_of(cell.signature)

    return ran


def evaluated_on(cell: Cell) -> DeviceSplit:
    """As the cell was tested on it."""
    config = cell.config
    reader, presenter = build.build_reader(config), build.build_presenter(config)
    held_out, cpu = config["dataset"]["validation"], torch.device("cpu")
    return prepare_splits(reader, "", presenter, held_out, cpu)["test"]


def test_a_result_says_which_composed_images_were_evaluated_on(make: Callable[..., Made]) -> None:
    cell, result, folder = make(*PAIRS, "epochs=1")
    batch = evaluated_on(cell).evaluation_batch(slice(0, TEST_EXAMPLES))
    images = (batch.images_BCHW * 255).round().to(torch.uint8).numpy().tobytes()
    digest = hashlib.sha256(images + batch.labels.to(torch.uint8).numpy().tobytes())
    assert result["test_sha256"] == digest.hexdigest()
    assert json.loads((folder / "result.json").read_text())["test_sha256"] == digest.hexdigest()


def test_images_of_files_have_no_fingerprint_of_their_own(make: Callable[..., Made]) -> None:
    _, result, folder = make("epochs=1")
    assert result["test_sha256"] is None
    assert json.loads((folder / "result.json").read_text())["test_sha256"] is None


def test_stored_predictions_have_both_labels_and_give_the_error(make: Callable[..., Made]) -> None:
    cell, result, folder = make(*PAIRS)
    with np.load(folder / "predictions.npz", allow_pickle=False) as stored:
        scores_MN, labels_ML = stored["scores"], stored["labels"]
    # limit_batches counts batches of 500, so that all test images are there.
    expected = evaluated_on(cell).evaluation_batch(slice(0, TEST_EXAMPLES)).labels.numpy()
    np.testing.assert_array_equal(labels_ML, expected)
    assert scores_MN.shape == (TEST_EXAMPLES, 10)
    active_ML = np.argsort(scores_MN, axis=1)[:, -2:]
    found = [
        len(set(a) & set(b)) for a, b in zip(active_ML.tolist(), labels_ML.tolist(), strict=True)
    ]
    metrics = result["metrics"]
    assert metrics["test/error"] == pytest.approx(np.mean(np.array(found) < 2), abs=1e-12)
    assert metrics["test/at_least_one"] == pytest.approx(np.mean(np.array(found) > 0), abs=1e-12)


def test_every_split_is_measured_in_all_that_pairs_have(make: Callable[..., Made]) -> None:
    _, result, _ = make(*PAIRS)
    names = ("loss", "error", "reconstruction", "at_least_one", "segmentation")
    splits = ("train", "val", "test")
    assert set(result["metrics"]) == {f"{split}/{name}" for split in splits for name in names}
    assert all(math.isfinite(value) for value in result["metrics"].values())


def test_the_same_cell_gives_the_same_numbers(make: Callable[..., Made], tmp_path: Path) -> None:
    _, one, _ = make(*PAIRS)
    _, other, _ = make(*PAIRS, f"places.storage={tmp_path / 'other'}")
    assert one["metrics"] == other["metrics"]
    assert one["test_sha256"] == other["test_sha256"]


def test_another_seed_of_the_cell_is_tested_on_the_same_images(make: Callable[..., Made]) -> None:
    _, one, _ = make(*PAIRS, "epochs=1")
    _, other, _ = make(*PAIRS, "epochs=1", "seed=1")
    _, others, _ = make(*PAIRS, "epochs=1", "dataset.batches.seed=1")
    assert one["test_sha256"] == other["test_sha256"] != others["test_sha256"]
    assert one["metrics"]["test/loss"] != other["metrics"]["test/loss"]


def test_too_few_held_out_digits_for_a_pair_are_refused_by_name(make: Callable[..., Made]) -> None:
    with pytest.raises(ConfigError, match=r"1 digits of validation .* raise dataset\.validation"):
        make(*PAIRS[:2], "dataset.validation=1")


def test_a_margin_that_does_not_make_the_declared_images_is_refused_by_its_key(
    make: Callable[..., Made],
) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.image_shape is \[1, 36, 36\].*\[1, 32, 32\]"):
        make(*PAIRS, "dataset.batches.margin=2")
