"""Every experiment of conf/experiment trains two steps and is evaluated, on small data."""

import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import official_files
import pytest
from trained_cells import read_outputs, train

from capsweep.config import compose, package_files
from capsweep.config.validation import count_validation_examples

pytestmark = pytest.mark.slow

EXPERIMENTS = package_files.find_folder("conf") / "experiment"
PRESETS = sorted(
    path.relative_to(EXPERIMENTS).with_suffix("").as_posix() for path in EXPERIMENTS.rglob("*.yaml")
)
assert len(PRESETS) >= 20
TEST_EXAMPLES = 6

# What writes the official files of data sets; None: they need none.
WRITE: dict[str, Callable[..., list[str]] | None] = {
    "digits.DigitsReader": None,
    "digits.SignReader": None,
    "digits.IdxReader": official_files.write_idx,
    "cifar10.Cifar10Reader": official_files.write_cifar10,
    "smallnorb.SmallNorbReader": official_files.write_smallnorb,
    "smallnorb.NovelViewpoints": official_files.write_viewpoints,
    "digits.SvhnReader": official_files.write_svhn,
    "affine.AffnistTest": official_files.write_affnist,
}


def small_data(preset: str, folder: Path) -> list[str]:
    """Writes the official files of the preset's data set, small; how it is told of them."""
    dataset = compose.cell([f"experiment={preset}"]).config["dataset"]
    reader = dataset.get("test", dataset["reader"])["_target_"].removeprefix("capsweep.data.")
    write = WRITE[reader]
    overrides = [] if write is None else write(folder, train=20, test=TEST_EXAMPLES)
    if dataset["validation"] > 0:
        overrides.append("dataset.validation=6")
    if "test_examples" in dataset.get("batches", {}):
        overrides = [text for text in overrides if not text.startswith("dataset.examples.test=")]
        overrides.append(f"dataset.batches.test_examples={TEST_EXAMPLES}")
    return overrides


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Emptied afterwards: pytest keeps what tests leave, and the weights are half a gigabyte."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_trains_two_steps_and_is_evaluated(preset: str, folder: Path) -> None:
    data = small_data(preset, folder / "data")
    here = [f"places.storage={folder / 'outputs'}", f"places.data={folder / 'data'}"]
    # The preset's network and training, whole, for two steps of four images.
    short = ["debug=fast", "batch_size=4"]
    cell = compose.cell([f"experiment={preset}", *short, *data, *here])
    result = train(cell)
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
    scores, labels = (read_outputs(cell)[1][name] for name in ("scores", "labels"))
    assert len(labels) == len(scores) == cell.config["dataset"]["examples"]["test"]
    assert labels.ndim == min(shown, 2)
    assert np.isfinite(scores).all()
