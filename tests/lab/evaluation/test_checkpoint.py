"""A finished cell is read as it was made, or is refused with its name and the cure."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reported_cells
import torch
import trained_cells
import yaml

from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.errors import UserError
from capsweep.lab.evaluation.checkpoint import CellLoader
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.training.run import Job, run

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty storage, into which the first test trains the cell."""
    return tmp_path_factory.mktemp("trained") / "outputs"


@pytest.fixture
def cell(small_cell: Callable[..., Cell], storage: Path, trained_once: Path) -> Cell:
    """A finished cell, tested on 360 digits; each test has its own copy."""
    cell = small_cell("epochs=1", "limit_batches=1")
    if not trained_once.exists():
        run(Job(cell))
        shutil.copytree(storage, trained_once)
    shutil.copytree(trained_once, storage, dirs_exist_ok=True)
    return cell


@pytest.fixture
def loader(cell: Cell) -> CellLoader:
    here = places.resolve(cell.config["places"])
    return CellLoader(Ledger(here.ledger), here.data, CPU)


@pytest.fixture
def folder(cell: Cell) -> Path:
    return Path(cell.config["places"]["ledger"]) / folder_of(cell.signature)


def test_a_cell_says_again_what_it_said(cell: Cell, loader: CellLoader) -> None:
    before = torch.get_rng_state()
    trained = loader.load(cell.signature)
    stored = trained.stored
    assert torch.equal(torch.get_rng_state(), before)
    assert loader.load(cell.signature, cell.config).test is trained.test  # it is read once
    scores_MN, labels_M = trained.predict_scores(len(stored[1]))
    np.testing.assert_allclose(scores_MN, stored[0], atol=1e-6)
    assert np.array_equal(labels_M, stored[1])
    retest, result = trained.verify(), loader.ledger.read_result(cell.signature)
    assert (retest.examples, retest.ties) == (360, 0)
    assert retest.wrong / 360 == pytest.approx(result["metrics"]["test/error"], abs=1e-12)
    first = trained.verify(7)
    assert first.examples == 7
    assert first.wrong == (stored[0].argmax(axis=1) != stored[1])[:7].sum()
    assert not trained.network.training
    assert not any(weight.requires_grad for weight in trained.network.parameters())


@pytest.mark.parametrize("override", ["precision=bf16-mixed", "model=cnn_small"])
def test_cells_of_other_kinds_say_what_they_said(
    small_cell: Callable[..., Cell], override: str
) -> None:
    trained = trained_cells.trained(small_cell("epochs=1", "limit_batches=1", override))
    assert trained.verify().ties == 0


def flip_weights(folder: Path) -> None:
    content = bytearray((folder / "weights.ckpt").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "weights.ckpt").write_bytes(content)


def replace_weights(folder: Path, weight: object) -> None:
    torch.save({"conv.weight": weight}, folder / "weights.ckpt")
    reported_cells.sign(folder)


def change_settings(folder: Path) -> None:
    science = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**science, "seed": 77}))


def change_overrides(folder: Path) -> None:
    (folder / "provenance.json").write_text(json.dumps({"overrides": ["no.such=1"]}))
    reported_cells.sign(folder)


def change_data(folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    result["data"]["train"] = "0" * 64
    result = stored_files.with_digests(result, {})
    (folder / "result.json").write_text(json.dumps(result))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: (f / "result.json").unlink(), "it is not finished; run the cell first"),
        (lambda f: (f / "config.yaml").unlink(), r"its config\.yaml is missing; .* run it again"),
        (lambda f: (f / "weights.ckpt").unlink(), r"weights\.ckpt is missing; import"),
        (lambda f: (f / "provenance.json").unlink(), r"its provenance\.json is missing"),
        (flip_weights, r"weights\.ckpt is damaged \(it was altered.* run it again"),
        (lambda f: replace_weights(f, Path("a pickle")), r"not fit .*UnpicklingError"),
        (lambda f: replace_weights(f, torch.zeros(1)), "not fit .* ledger reproduce"),
        (change_data, "its train data had the sha256 0{64}, but the data here has [0-9a-f]{64}"),
        (change_settings, r"it was altered.* remove the cell \(capsweep ledger rm"),
        (change_overrides, r"the present code refuses its settings \(no\.such"),
    ],
)
def test_what_cannot_be_asked_names_the_cell_and_the_cure(
    cell: Cell, loader: CellLoader, folder: Path, harm: Callable[[Path], object], message: str
) -> None:
    harm(folder)
    with pytest.raises(UserError, match=f"{cell.signature}[:/].*{message}"):
        loader.load(cell.signature)


def test_other_predictions_than_stored_are_refused_and_ties_are_counted(
    cell: Cell, loader: CellLoader
) -> None:
    trained = loader.load(cell.signature)
    stored_MN, labels_M = trained.stored
    right = int(np.flatnonzero(stored_MN.argmax(axis=1) == labels_M)[0])
    other = (labels_M[right] + 1) % 10
    tied_MN = stored_MN.copy()
    tied_MN[right, other] = np.nextafter(stored_MN[right].max(), np.float32(9))
    assert replace(trained, stored=(tied_MN, labels_M)).verify().ties == 1
    tied_MN[right, other] = 2
    with pytest.raises(UserError, match="classifies 1 of 360 test examples differently"):
        replace(trained, stored=(tied_MN, labels_M)).verify()
    with pytest.raises(UserError, match="has different labels"):
        replace(trained, stored=(stored_MN, (labels_M + 1) % 10)).verify()


def test_what_a_gpus_kernels_trained_is_routed_without_them_elsewhere(
    loader: CellLoader, cell: Cell, folder: Path
) -> None:
    made = json.loads((folder / "provenance.json").read_text())
    made["overrides"].append("routing.impl=triton")
    (folder / "provenance.json").write_text(json.dumps(made))
    reported_cells.sign(folder)
    trained = loader.load(cell.signature)
    assert trained.config["routing"]["impl"] == "auto"
    assert trained.verify(10).ties == 0
