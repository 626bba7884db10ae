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
from capsweep.errors import ConfigError, DataError, UserError
from capsweep.evaluation.checkpoint import CellLoader, verify_predictions
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


def test_numbers_depend_neither_on_the_store_nor_on_the_shards(
    declared: Declared, tmp_path: Path
) -> None:
    with_sources = shard_folders.job(with_sources=True)
    results, cells = [], []
    for name, made_by, options in (
        ("three", with_sources, {"shards": 3}),
        ("seven", with_sources, {"shards": 7}),
        ("composed images alone", shard_folders.job(), {"shards": 2}),
    ):
        whole = shard_folders.make(tmp_path / name, made_by, **options)
        cell = declared(whole, tmp_path / name, f"places.storage={tmp_path / name / 'out'}")
        results.append(train(cell))
        cells.append(cell)
    assert len({cell.signature for cell in cells}) == 1
    assert all(result["metrics"] == results[0]["metrics"] for result in results)
    assert {"train/reconstruction", "test/segmentation"} <= set(results[0]["metrics"])
    assert len({result["test_sha256"] for result in results}) == 1
    first = read_outputs(cells[0])[1]
    for cell in cells[1:]:
        assert all(np.array_equal(first[k], array) for k, array in read_outputs(cell)[1].items())


def test_test_images_are_those_that_are_composed_on_the_fly(
    declared: Declared, small_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    whole = shard_folders.make(tmp_path / "shards")
    ours = train(declared(whole, tmp_path / "shards", NO_DECODER, "epochs=1"))
    composed = ["dataset=multimnist", "dataset.source=digits", "dataset.batches.test_examples=50"]
    theirs = train(small_cell(*composed, "batch_size=16", NO_DECODER, "epochs=1"))
    assert ours["test_sha256"] == theirs["test_sha256"] is not None


def test_a_decoder_without_digits_to_draw_is_refused_with_each_cure(
    declared: Declared, tmp_path: Path
) -> None:
    """The digits of MNIST are not in the data folder, and no mirror is asked."""
    whole = of_absent_digits(shard_folders.make(tmp_path / "shards"))
    manifest.write_manifest(tmp_path / "shards", whole)
    cell = declared(whole, tmp_path / "shards", f"places.data={tmp_path}")
    cell.config["dataset"]["reader"]["mirrors"] = []
    for refused in (build.build_source(cell.config).check, build.build_source(cell.config).open):
        with pytest.raises(
            DataError, match=r"no digits alone, .* cannot be made of mnist: .*mnist"
        ):
            refused(str(tmp_path))
    with pytest.raises(DataError, match="--with-sources, or train without a decoder: loss"):
        train(cell)


def test_nothing_is_composed_for_shards_of_another_version(
    declared: Declared, tmp_path: Path
) -> None:
    made = shard_folders.make(tmp_path / "shards")
    other = replace(made, content=replace(made.content, version=made.content.version + 1))
    manifest.write_manifest(tmp_path / "shards", other)
    cell = declared(other, tmp_path / "shards")
    with pytest.raises(DataError, match=r"index\.json: its examples are composed by version 2"):
        train(cell)


def of_absent_digits(made: Manifest) -> Manifest:
    """A manifest of shards that says that they were made of MNIST."""
    declared = compose.cell(["dataset=mnist"]).config["dataset"]["reader"]["sha256"]
    origin = Origin("mnist", hash_declared({"sha256": declared}))
    return replace(made, content=replace(made.content, origin=origin))


def test_a_finished_cell_is_asked_again_without_its_training_shards(
    declared: Declared, tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    whole = shard_folders.make(folder, shard_folders.job(with_sources=True))
    cell = declared(whole, folder)
    result = train(cell)
    provenance = json.loads((find_folder(cell) / "provenance.json").read_text())
    assert provenance["fingerprint"] == whole.content.fingerprint
    for shard in whole.shards_of("train"):
        (folder / shard.name).unlink()
    here = places.resolve(cell.config["places"])
    loader = CellLoader(Ledger(here.ledger), here.data, torch.device("cpu"))
    asked = loader.load(cell.signature)
    stored = read_outputs(cell)[1]
    clean = verify_predictions(asked, (stored["scores"], stored["labels"]))
    assert clean.wrong / clean.examples == pytest.approx(result["metrics"]["test/error"])
    assert asked.test.evaluation_batch(slice(3, 5)).targets_BLCHW.shape == (2, 2, 1, 36, 36)


def test_pairs_of_held_out_digits_validate_where_the_data_set_has_them(
    declared: Declared, tmp_path: Path
) -> None:
    whole = shard_folders.make(tmp_path / "shards", shard_folders.job("dataset.validation=40"))
    assert whole.content.splits["validation"] == 40
    cell = declared(whole, tmp_path / "shards", NO_DECODER, "epochs=1")
    assert train(cell)["metrics"]["val/error"] <= 1
    undeclared = declared(whole, tmp_path / "shards", NO_DECODER, "epochs=1", "seed=1")
    config = {**undeclared.config, "dataset": {**undeclared.config["dataset"]}}
    config["dataset"]["examples"] = {"train": 60, "test": 50, "validation": 0}
    with pytest.raises(DataError, match=r"'validation': 0} declared, .*'validation': 40.* read"):
        train(Cell(config, undeclared.overrides))


def test_a_data_set_of_another_fingerprint_is_refused_with_the_overrides_that_declare_it(
    declared: Declared, tmp_path: Path
) -> None:
    whole = shard_folders.make(tmp_path / "shards", shard_folders.job("dataset.batches.seed=5"))
    cell = declared(shard_folders.make(tmp_path / "other"), tmp_path / "shards", NO_DECODER)
    said = " ".join(declare_data_set(whole.content))
    with pytest.raises(DataError, match=rf"{tmp_path}/shards/index.json by {said}"):
        train(cell)


def test_digits_of_another_source_are_refused_by_name(declared: Declared, tmp_path: Path) -> None:
    whole = shard_folders.make(tmp_path / "shards")
    fingerprint = f"dataset.shards.fingerprint={whole.content.fingerprint}"
    there = [f"dataset.shards.folders=[{tmp_path / 'shards'}]", fingerprint]
    cell = compose.cell(["dataset=multimnist_shards", *there, *COUNTS])
    with pytest.raises(DataError, match=r"digits of digits, .*; set dataset\.source=digits"):
        build.build_source(cell.config).check("")


def test_a_data_set_that_is_nowhere_is_told_with_the_command_that_makes_it() -> None:
    cell = compose.cell(["dataset=multimnist_shards"])  # planned without data
    with pytest.raises(DataError, match=r"/nowhere/multimnist/index\.json, .*no such file; make"):
        build.build_source(cell.config).check("/nowhere")


def test_more_test_examples_than_there_are_are_refused_by_the_key(
    declared: Declared, tmp_path: Path
) -> None:
    whole = shard_folders.make(tmp_path / "shards")
    cell = declared(whole, tmp_path / "shards", "dataset.batches.test_examples=721")
    with pytest.raises(UserError, match=r"dataset\.batches\.test_examples .* 720 .*, got 721"):
        train(cell)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dataset.validation=40", "must be 0 .*make the data set with dataset.validation=5000"),
        ("stop_accuracy=0.9", "reached by validation examples, .*make the data set with"),
        ("dataset.shards.fingerprint=abc", "must be a sha256, 64 hexadecimal digits, got abc"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_the_plan(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose.cell(["dataset=multimnist_shards", override])
