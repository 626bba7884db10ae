"""Cells on shards, on composed images and on novel viewpoints, from configuration to the ledger."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import official_files
import pytest
import shard_folders
import torch
from filled_overrides import fill_overrides
from trained_cells import read_outputs, read_provenance, train, trained

from capsweep.config import compose, places
from capsweep.config.cell import Cell
from capsweep.errors import DataError, UserError
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
        more = fill_overrides(overrides, *COUNTS)
        return small_cell("dataset=multimnist_shards", *there, *more)

    return make


def test_numbers_do_not_depend_on_the_shards(
    declared: Declared, small_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    one, other = (
        declared(
            shard_folders.make(tmp_path / str(shards), shards=shards),
            tmp_path / str(shards),
            f"places.storage={tmp_path / str(shards) / 'out'}",
        )
        for shards in (3, 7)
    )
    assert one.signature == other.signature
    few, many = train(one), train(other)
    for key in ("metrics", "test_sha256"):
        assert few[key] == many[key]
    assert {"train/reconstruction", "test/segmentation"} <= set(few["metrics"])
    # Files are hashed, and not what is in them: each making is data of its own.
    assert few["data"]["train"] != many["data"]["train"]
    assert {"digits.train", "digits.test"} <= set(many["data"])
    composed = ["dataset=multimnist", "dataset.source=digits", "dataset.batches.test_examples=50"]
    on_the_fly = train(small_cell(*composed, "batch_size=16", NO_DECODER, "epochs=1"))
    assert on_the_fly["test_sha256"] == few["test_sha256"]
    found = read_outputs(other)[1]
    assert all(np.array_equal(array, found[k]) for k, array in read_outputs(one)[1].items())


def test_a_finished_cell_is_asked_again_without_its_training_shards(
    declared: Declared, tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    whole = shard_folders.make(folder, shard_folders.job("dataset.validation=40"))
    assert whole.content.splits["validation"] == 40  # pairs of held-out digits
    cell = declared(whole, folder)
    result = train(cell)
    assert result["metrics"]["val/error"] <= 1
    assert read_provenance(cell)["fingerprint"] == whole.content.fingerprint
    for shard in whole.list_shards("train"):
        (folder / shard.name).unlink()
    asked = trained(cell)
    clean = asked.verify()
    assert clean.wrong / clean.examples == pytest.approx(result["metrics"]["test/error"])
    assert asked.test.evaluation_batch(slice(3, 5)).targets_BLCHW.shape == (2, 2, 1, 36, 36)


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
    with pytest.raises(DataError, match=r"single digits, .* cannot be read from mnist: .*mnist"):
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
    with pytest.raises(DataError, match="version 2 of the program made the examples"):
        train(declared(later, folder))


TEST_EXAMPLES = 60


def test_a_cell_is_measured_on_composed_images_in_all_that_pairs_have(
    small_cell: Callable[..., Cell],
) -> None:
    pairs = ["dataset=multimnist", "dataset/source=digits", "dataset.validation=40"]
    counts = [f"dataset.batches.test_examples={TEST_EXAMPLES}", "batch_size=16"]
    cell = small_cell(*pairs, *counts)
    result = train(cell)
    splits = build.load_splits(cell.config, "", torch.device("cpu"))
    batch = splits["test"].evaluation_batch(slice(0, TEST_EXAMPLES))
    images = (batch.images_BCHW * 255).round().to(torch.uint8).numpy().tobytes()
    digest = hashlib.sha256(images + batch.labels.to(torch.uint8).numpy().tobytes())
    assert result["test_sha256"] == digest.hexdigest()

    metrics = result["metrics"]
    names = ("loss", "error", "balanced_error", "reconstruction", "at_least_one", "segmentation")
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
    missed_N, shown_N = (np.array(result["classes"][name]) for name in ("missed", "examples"))
    assert missed_N.sum() == (2 - common_M).sum()
    assert metrics["test/balanced_error"] == pytest.approx(np.mean(missed_N / shown_N), abs=1e-12)


def test_validation_error_is_that_of_familiar_and_test_error_that_of_novel_images(
    tmp_path: Path,
) -> None:
    data = official_files.write_viewpoints(tmp_path / "data", 12, 40)
    here = [f"places.storage={tmp_path / 'outputs'}", f"places.data={tmp_path / 'data'}"]
    fixed = ["model=cnn_small", "batch_size=6", "logger=csv", "trainer.accelerator=cpu"]
    goal = ["dataset=smallnorb_azimuth", "epochs=3", "stop_accuracy=0.0"]
    cell = compose.cell([*data, *here, *fixed, *goal])
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
