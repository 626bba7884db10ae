"""The convolutional control, and that it is a fair one."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from capsweep.config import compose
from capsweep.errors import ConfigError
from capsweep.model.cnn import ConvNet
from capsweep.training import build
from capsweep.training.size import network_size


def _flops(*overrides: str) -> int:
    """Floating-point operations of one image, the reconstruction included where there is one."""
    network = build.build_network(compose.cell(overrides).config)
    images_BCHW = torch.zeros(1, 1, 28, 28)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        output = network(images_BCHW)
        if getattr(network, "decoder", None) is not None:
            network.decoder(output.pose_BJD, torch.ones(1, 10))
    return counter.get_total_flops()


@pytest.mark.parametrize("num_iters", [1, 3])
@pytest.mark.parametrize("weight", [0, 0.0005], ids=["plain", "reconstruction"])
def test_flops_are_those_of_capsnet_small_within_a_tenth(num_iters: int, weight: float) -> None:
    capsnet = _flops(
        "model=capsnet_small",
        f"routing.num_iters={num_iters}",
        f"loss.reconstruction.weight={weight}",
    )
    assert _flops("model=cnn_small") == pytest.approx(capsnet, rel=0.1)


def _kinds(network: ConvNet) -> list[str]:
    """Its layers, with what tells them apart."""
    found = []
    for layer in [*network.features, *network.classifier]:
        match layer:
            case nn.Conv2d():
                found.append(f"conv {layer.out_channels} {layer.kernel_size[0]}")
            case nn.MaxPool2d():
                found.append(f"pool {layer.kernel_size}")
            case nn.Linear():
                found.append(f"full {layer.out_features}")
            case nn.Dropout():
                found.append("dropout")
    return found


def _network(hidden: int | list[int] = 6, **conv: Any) -> ConvNet:
    return ConvNet((1, 12, 15), 4, conv, hidden, dropout=0.5)


def test_a_list_gives_each_convolution_its_own_kernel_and_pool() -> None:
    network = _network([7, 5], channels=[2, 3, 4], kernel=[5, 3, 1], pool=[3, 1, 2])
    convolutions = ["conv 2 5", "pool 3", "conv 3 3", "conv 4 1", "pool 2"]
    assert _kinds(network) == [*convolutions, "full 7", "full 5", "dropout", "full 4"]
    assert network.classifier[0].in_features == 4 * (12 // 3 // 2) * (15 // 3 // 2)
    assert network(torch.rand(2, 1, 12, 15)).scores_BN.shape == (2, 4)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("model.conv.pool=[2,2]", r"model\.conv\.pool needs one size for each of the 3 .*\[2, 2\]"),
        ("model.conv.pool=[4,4,4]", r"model\.conv\.pool leaves nothing of an image of \[28, 28\]"),
        (
            "model.conv.channels=[8,8] model.conv.pool=[1,1,1]",
            r"each of the 2 layers .*, got \[1, ",
        ),
    ],
)
def test_lists_that_do_not_fit_are_refused_by_name(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        network_size(compose.cell(["model=cnn_small", *overrides.split()]).config)
