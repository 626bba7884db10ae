"""The CNN that "Matrix capsules with EM routing" compares with, on all data sets of smallNORB."""

import pytest
import torch
from torch import nn

from capsweep.config import compose
from capsweep.model.cnn import ConvNet
from capsweep.training import build
from capsweep.training.size import size

PRESETS = ("smallnorb_cnn", "viewpoint_azimuth_cnn", "viewpoint_elevation_cnn")

every_preset = pytest.mark.parametrize("preset", PRESETS)


@every_preset
def test_number_of_parameters_is_that_of_the_paper(preset: str) -> None:
    assert size(compose.cell([f"experiment=em/{preset}"]).config).parameters == 4_253_349


def test_parameters_are_the_sum_over_the_layers() -> None:
    convolutions = (5 * 5 * 2 * 32 + 32) + (5 * 5 * 32 * 64 + 64)
    assert convolutions + (64 * 8 * 8 * 1024 + 1024) + (1024 * 5 + 5) == 4_253_349


@every_preset
def test_the_layers_are_those_of_section_5(preset: str) -> None:
    with torch.device("meta"):
        network = build.network(compose.cell([f"experiment=em/{preset}"]).config)
    assert isinstance(network, ConvNet)
    convolution = [nn.Conv2d, nn.ReLU, nn.MaxPool2d]
    assert [type(layer) for layer in network.features] == 2 * convolution
    assert [type(layer) for layer in network.classifier] == [
        nn.Linear,
        nn.ReLU,
        nn.Dropout,
        nn.Linear,
    ]
    dropouts = [layer.p for layer in network.modules() if isinstance(layer, nn.Dropout)]
    assert dropouts == [0.5]
    with torch.device("meta"):
        assert network.features(torch.empty(1, 2, 32, 32)).shape == (1, 64, 8, 8)


@every_preset
def test_nothing_is_chosen_on_test_images(preset: str) -> None:
    config = compose.cell([f"experiment=em/{preset}"]).config
    assert config["stop_accuracy"] is None
    assert config["dataset"]["validation"] == 0


def test_the_three_presets_differ_in_data_and_epochs_alone() -> None:
    sciences = [compose.cell([f"experiment=em/{preset}"]).science for preset in PRESETS]
    rest = [{k: v for k, v in s.items() if k not in ("dataset", "epochs")} for s in sciences]
    assert rest[0] == rest[1] == rest[2]
    assert [science["epochs"] for science in sciences] == [100, 300, 300]
