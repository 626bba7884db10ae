"""What a plan can say about data without having it."""

from collections.abc import Callable

import pytest

from capsweep.config import compose, places
from capsweep.config.cell import Cell
from capsweep.errors import ConfigError, DataError
from capsweep.training.run import run


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dataset.validation=1437", r"dataset\.validation must be below the 1437 training exam"),
        ("dataset.shift=28", r"dataset\.shift must be below the 28 pixels"),
        ("optim.optimizer.betas=[0.9,1.0]", r"optim\.optimizer\.betas must be two numbers in"),
        ("optim.optimizer.betas=[0.9]", r"optim\.optimizer\.betas must be two numbers in"),
    ],
)
def test_settings_that_no_data_could_meet_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose.cell([override])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dataset=cifar10 dataset.image_shape=[3,28,28]", r"dataset\.batches\.crop=24 are differ"),
        (
            "dataset=affnist dataset.image_shape=[1,28,28]",
            r"dataset\.batches\.canvas=40 are differ",
        ),
        ("dataset.image_shape=[28]", r"dataset\.image_shape must be \[C, H, W\]"),
        ("dataset=affnist_like dataset.test.canvas=44", r"is drawn from dataset\.batches\.canvas;"),
        ("dataset=multimnist dataset.labels_per_image=1", r"per_image belongs to its file"),
        ("dataset=multimnist dataset.batches.shift=36", r"dataset\.batches\.shift must be below"),
        ("dataset=multimnist model=cnn_small", r"loss=cross_entropy is .*; set loss=binary_cross"),
        ("dataset=multimnist loss=cross_entropy", r"loss=cross_entropy is .*; set loss=margin"),
    ],
)
def test_what_does_not_belong_together_is_refused(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        compose.cell(line.split())
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("line", "shape"),
    [
        ("dataset=cifar10 dataset.batches.crop=28", [3, 28, 28]),
        ("dataset=smallnorb dataset.batches.crop=40", [2, 40, 40]),
        ("dataset=affnist_like dataset.batches.canvas=44", [1, 44, 44]),
    ],
)
def test_networks_follow_the_pixels_that_a_data_set_makes(line: str, shape: list[int]) -> None:
    config = compose.cell([*line.split(), "model=capsnet"]).config
    assert config["dataset"]["image_shape"] == config["model"]["image_shape"] == shape
    assert config["dataset"].get("test", {}).get("canvas", shape[1]) == shape[1]


def test_declared_examples_are_no_part_of_the_signature() -> None:
    assert compose.cell(["dataset.examples.train=99999"]).signature == compose.cell([]).signature


def test_declared_examples_are_verified_when_the_data_is_read(
    small_cell: Callable[..., Cell],
) -> None:
    cell = small_cell("dataset.examples.train=1438")
    with pytest.raises(DataError, match=r"dataset\.examples: .*1438.* declared, .*1437.* read"):
        run(cell, places.resolve(cell.config["places"]))


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_a_preset_of_pairs_says_which_data_sets_it_is_for(dataset: str) -> None:
    said = r"^conf/experiment/overlap\.yaml: dataset\.source: taken by .*conf/dataset/multimnist"
    with pytest.raises(ConfigError, match=said):
        compose.cell(["experiment=overlap", f"dataset={dataset}"])
