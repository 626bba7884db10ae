"""A cell on shards, from configuration to the ledger and back to a trained network."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import shard_folders
import torch
from trained_cells import find_folder, read_outputs, train

from capsweep.config import compose, places
from capsweep.config.cell import Cell
from capsweep.errors import DataError, UserError
from capsweep.lab.evaluation.checkpoint import CellLoader
from capsweep.ledger.ledger import Ledger
from capsweep.shards import manifest
from capsweep.shards.manifest import Manifest, Origin, hash_declared
from capsweep.shards.reader import declare_data_set
from capsweep.training import build

COUNTS = ["dataset.batches.epoch_examples=60", "dataset.batches.test_examples=50", "batch_size=16"]
NO_DECODER = "loss.reconstruction.weight=0"

Declared = Callable[..., Cell]


@pytest.fixture
def declared(small_cell: Callable[..., Cell]) -> Declared:
    """A small cell on the data set of a manifest that lies in a folder."""

    def make(whole: Manifest, folder: Path, *overrides: str) -> Cell:
        there = [*declare_data_set(whole.content), f"dataset.shards.folders=[{folder}]"]
        chosen = {text.split("=", 1)[0] for text in overrides}
        counts = [text for text in COUNTS if text.split("=", 1)[0] not in chosen]
        return small_cell("dataset=multimnist_shards", *there, *counts, *overrides)

    return make


def test_numbers_do_not_depend_on_the_shards(
    declared: Declared, small_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    results, cells = [], []
    for name, shards in (("three", 3), ("seven", 7)):
        whole = shard_folders.make(tmp_path / name, shards=shards)
        cell = declared(whole, tmp_path / name, f"places.storage={tmp_path / name / 'out'}")
        results.append(train(cell))
        cells.append(cell)
    assert len({cell.signature for cell in cells}) == 1
    assert all(result["metrics"] == results[0]["metrics"] for result in results)
    assert {"train/reconstruction", "test/segmentation"} <= set(results[0]["metrics"])
    assert len({result["test_sha256"] for result in results}) == 1
    # Files are hashed, and not what is in them: each making is data of its own.
    assert len({result["data"]["train"] for result in results}) == 2
    composed = {name for name in results[1]["data"] if name.startswith("digits.")}
    assert composed == {"digits.train", "digits.test"}
    composed = ["dataset=multimnist", "dataset.source=digits", "dataset.batches.test_examples=50"]
    on_the_fly = train(small_cell(*composed, "batch_size=16", NO_DECODER, "epochs=1"))
    assert on_the_fly["test_sha256"] == results[0]["test_sha256"]
    first = read_outputs(cells[0])[1]
    for cell in cells[1:]:
        assert all(np.array_equal(first[k], array) for k, array in read_outputs(cell)[1].items())


def test_a_finished_cell_is_asked_again_without_its_training_shards(
    declared: Declared, tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    whole = shard_folders.make(folder)
    cell = declared(whole, folder)
    result = train(cell)
    provenance = json.loads((find_folder(cell) / "provenance.json").read_text())
    assert provenance["fingerprint"] == whole.content.fingerprint
    for shard in whole.shards_of("train"):
        (folder / shard.name).unlink()
    here = places.resolve(cell.config["places"])
    loader = CellLoader(Ledger(here.ledger), here.data, torch.device("cpu"))
    asked = loader.load(cell.signature)
    clean = asked.verify()
    assert clean.wrong / clean.examples == pytest.approx(result["metrics"]["test/error"])
    assert asked.test.evaluation_batch(slice(3, 5)).targets_BLCHW.shape == (2, 2, 1, 36, 36)


def test_pairs_of_held_out_digits_validate_where_the_data_set_has_them(
    declared: Declared, tmp_path: Path
) -> None:
    whole = shard_folders.make(tmp_path / "shards", shard_folders.job("dataset.validation=40"))
    assert whole.content.splits["validation"] == 40
    cell = declared(whole, tmp_path / "shards", NO_DECODER, "epochs=1")
    assert train(cell)["metrics"]["val/error"] <= 1


def test_a_decoder_without_digits_to_draw_is_refused_with_each_cure(
    declared: Declared, tmp_path: Path
) -> None:
    """The digits of MNIST are not in the data folder, and no mirror is asked."""
    made = shard_folders.make(tmp_path / "shards")
    mnist = compose.cell(["dataset=mnist"]).config["dataset"]["reader"]["sha256"]
    origin = Origin("mnist", hash_declared({"sha256": mnist}))
    absent = replace(made, content=replace(made.content, origin=origin))
    manifest.write_manifest(tmp_path / "shards", absent)
    cell = declared(absent, tmp_path / "shards", f"places.data={tmp_path}")
    cell.config["dataset"]["reader"]["mirrors"] = []
    with pytest.raises(DataError, match=r"digits alone, .* cannot be made of mnist: .*mnist"):
        build.build_source(cell.config).check(str(tmp_path))
    with pytest.raises(DataError, match="or train without a decoder: loss"):
        train(cell)


def test_another_data_set_than_is_declared_is_refused_with_the_cure(
    declared: Declared, tmp_path: Path
) -> None:
    made, folder = shard_folders.make(tmp_path / "shards"), tmp_path / "shards"
    content, override = made.content, f"dataset.shards.folders=[{folder}]"
    other = shard_folders.make(tmp_path / "other", shard_folders.job("dataset.batches.seed=5"))
    fingerprint = f"dataset.shards.fingerprint={content.fingerprint}"
    later = replace(made, content=replace(content, version=content.version + 1))
    here = [f"places.storage={tmp_path}"]
    for cell, message in (
        (declared(other, folder, NO_DECODER), " ".join(declare_data_set(content))),
        (
            compose.cell(["dataset=multimnist_shards", *here, override, fingerprint, *COUNTS]),
            "digits of",
        ),
        (declared(made, tmp_path / "nowhere"), "no such file; make"),
        (declared(made, folder, "dataset.batches.test_examples=721"), "720 .*, got 721"),
    ):
        with pytest.raises(UserError, match=message):
            train(cell)
    manifest.write_manifest(folder, later)
    with pytest.raises(DataError, match="its examples are composed by version 2"):
        train(declared(later, folder))
