"""`capsweep eval multicrop`: 13 crops of each test image."""

import json
from pathlib import Path

import numpy as np
import official_files
import pytest

from capsweep import cli
from capsweep.config import places
from capsweep.evaluation.trained import Loader, device_of
from capsweep.ledger.ledger import Ledger

SWEEP = """\
question: Do more crops help?
base: [epochs=1, batch_size=16, trainer.accelerator=cpu, logger=csv]
seeds: [0]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_small, "model.hidden=8"]}
table: {rows: [arm], columns: [dataset], metric: test/error}
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "crops.yaml"
    path.write_text(SWEEP)
    return path


def run(sweep: Path, storage: Path, overrides: list[str], capsys) -> int:
    """Train the sweep's cells, then ask them."""
    choices = [str(sweep), *overrides, "--storage", str(storage)]
    choices += ["--data-dir", str(storage.parent / "data")]
    assert cli.main(["sweep", *choices, "--executor", "local"]) == 0
    capsys.readouterr()
    return cli.main(["eval", "multicrop", *choices, "--device", "cpu"])


def test_both_errors_are_printed_and_written(
    sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = storage.parent / "data"
    written = official_files.write_cifar10(data, train=40, test=30, form="plain")
    overrides = ["dataset=cifar10", *written]
    assert run(sweep, storage, overrides, capsys) == 0
    text = (storage / "reports/crops/multicrop.md").read_text()
    row = [field.strip() for field in text.splitlines()[6].strip("|").split("|")]
    (path,) = storage.glob("ledger/*/*/evals/multicrop.json")
    told = json.loads(path.read_text())
    assert (told["crops"], told["examples"], told["ties"]) == (13, 30, 0)
    result = json.loads((path.parents[1] / "result.json").read_text())
    assert told["single_error"] == pytest.approx(result["metrics"]["test/error"])
    single, together = (f"{100 * told[key]:.2f} %" for key in ("single_error", "multicrop_error"))
    assert row == ["cnn", "cifar10", "1/1", "30", single, together]
    assert "1, 2 and 3 pixels off it along both diagonals" in text

    loader = Loader(Ledger(places.absolute(f"{storage}/ledger")), data, device_of("cpu"))
    trained = loader.load(path.parents[1].name)
    crops = trained.test.iterate_crops(slice(0, 30))
    scores = np.mean([trained(c.images_BCHW).scores_BN.numpy() for c in crops], axis=0)
    wrong = scores.argmax(axis=1) != trained.test.evaluation_batch(slice(0, 30)).labels.numpy()
    assert told["multicrop_error"] == pytest.approx(wrong.mean())


def test_images_that_are_shown_whole_have_no_crops(
    sweep: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(sweep, storage, ["limit_batches=1"], capsys) == 2
    assert "its data set has no dataset.batches.crop" in capsys.readouterr().err
