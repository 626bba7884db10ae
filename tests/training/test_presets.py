"""Every experiment of conf/experiment trains two steps and is evaluated, on small data."""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import official_files
import pytest

from capsweep.config import compose, package_files, places
from capsweep.config.cell import Cell
from capsweep.config.validation import count_validation_examples
from capsweep.ledger.ledger import folder_of
from capsweep.training.run import Job, run

pytestmark = pytest.mark.slow

EXPERIMENTS = package_files.find_folder("conf") / "experiment"
PRESETS = sorted(
    path.relative_to(EXPERIMENTS).with_suffix("").as_posix() for path in EXPERIMENTS.rglob("*.yaml")
)
assert len(PRESETS) >= 20
TEST_EXAMPLES = 6

# Data sets that need no files; what writes those of the others.
EMBEDDED = ("capsweep.data.digits.DigitsReader", "capsweep.data.digits.SignReader")
WRITE: dict[str, Callable[..., list[str]]] = {
    "capsweep.data.digits.IdxReader": official_files.write_idx,
    "capsweep.data.cifar10.Cifar10Reader": official_files.write_cifar10,
    "capsweep.data.smallnorb.SmallNorbReader": official_files.write_smallnorb,
    "capsweep.data.smallnorb.NovelViewpoints": official_files.write_viewpoints,
    "capsweep.data.digits.SvhnReader": official_files.write_svhn,
    "capsweep.data.affine.AffnistTest": official_files.write_affnist,
}


def small_data(preset: str, folder: Path) -> list[str]:
    """Writes the official files of the preset's data set, small; how it is told of them."""
    dataset = compose.cell([f"experiment={preset}"]).config["dataset"]
    reader = dataset.get("test", dataset["reader"])["_target_"]
    overrides = []
    if reader not in EMBEDDED:
        overrides = WRITE[reader](folder, train=20, test=TEST_EXAMPLES)
    if dataset["validation"] > 0:
        overrides.append("dataset.validation=6")
    if "test_examples" in dataset.get("batches", {}):
        overrides = [text for text in overrides if not text.startswith("dataset.examples.test=")]
        overrides.append(f"dataset.batches.test_examples={TEST_EXAMPLES}")
    return overrides


def small(preset: str, folder: Path) -> Cell:
    """The preset's network and training, whole, for two steps of four images."""
    data = small_data(preset, folder / "data")
    here = [f"places.storage={folder / 'outputs'}", f"places.data={folder / 'data'}"]
    return compose.cell([f"experiment={preset}", "debug=fast", "batch_size=4", *data, *here])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Emptied afterwards: pytest keeps what tests leave, and the weights are half a gigabyte."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_trains_two_steps_and_is_evaluated(preset: str, folder: Path) -> None:
    cell = small(preset, folder)
    here = places.resolve(cell.config["places"])
    result = run(Job(cell))
    assert (result["status"], result["epochs"], result["steps"]) == ("finished", 1, 2)
    metrics = result["metrics"]
    assert all(math.isfinite(value) for value in metrics.values())
    assert {"train/loss", "test/loss", "test/error"} <= set(metrics)
    assert ("val/loss" in metrics) == (count_validation_examples(cell.config["dataset"]) > 0)
    decodes = cell.config["loss"]["reconstruction"]["weight"] > 0
    assert ("test/reconstruction" in metrics) == decodes

    shown = cell.config["dataset"].get("labels_per_image", 1)
    assert ("test/at_least_one" in metrics) == (shown > 1)
    assert ("test/segmentation" in metrics) == (shown > 1 and decodes)
    written = Path(here.ledger) / folder_of(cell.signature)
    assert json.loads((written / "result.json").read_text())["metrics"] == metrics
    with np.load(written / "predictions.npz", allow_pickle=False) as stored:
        scores, labels = stored["scores"], stored["labels"]
    assert len(labels) == len(scores) == cell.config["dataset"]["examples"]["test"]
    assert labels.ndim == min(shown, 2)
    assert np.isfinite(scores).all()
