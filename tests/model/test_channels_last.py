"""Convolutions whose channels stand side by side in memory: the same network."""

import copy
import io

import pytest
import torch
from torch import nn

from capsweep.config import compose
from capsweep.data.batches import Batch
from capsweep.training import build

NETWORKS = {
    "one channel": ["model=capsnet_tiny"],
    "three channels": ["model=capsnet_tiny", "dataset=svhn"],
    "divided": ["model=capsnet_tiny", "model.primary.divided=true", "model.padding=same"],
    "cnn": ["model=cnn_tiny", "loss=cross_entropy"],
    "em": ["model=matrix_capsnet_tiny", "routing=em", "loss.reconstruction.weight=0"],
}
every_network = pytest.mark.parametrize("overrides", NETWORKS.values(), ids=NETWORKS)


def channels_first(network: nn.Module) -> nn.Module:
    """A copy that is laid out as torch does by itself."""
    copied = copy.deepcopy(network)
    for parameter in copied.parameters():
        parameter.data = torch.empty(parameter.shape, dtype=parameter.dtype).copy_(parameter)
    return copied


@every_network
def test_numbers_and_gradients_are_those_of_channels_first(overrides: list[str]) -> None:
    config = compose.cell(overrides).config
    torch.manual_seed(0)
    network = build.build_network(config).double().eval()
    plain = channels_first(network)
    images = torch.rand(3, *config["dataset"]["image_shape"], dtype=torch.float64)
    batch = Batch(images, torch.arange(3))
    totals = [build.build_objective(config)(one, batch).total for one in (network, plain)]
    torch.testing.assert_close(totals[0], totals[1], rtol=1e-6, atol=0)
    for total in totals:
        total.backward()
    for one, other in zip(network.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        # What a fused optimiser counts on: a gradient lies in memory as its parameter does.
        assert one.grad.stride() == one.stride()
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-7)


@every_network
def test_convolutions_and_nothing_else_are_laid_out_so(overrides: list[str]) -> None:
    network = build.build_network(compose.cell(overrides).config)
    convolutions = [m.weight for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert convolutions
    for weight in convolutions:
        assert weight.stride()[1] == 1
    laid_out = {id(weight) for weight in convolutions}
    for name, parameter in network.named_parameters():
        assert id(parameter) in laid_out or parameter.is_contiguous(), name


@every_network
def test_weights_saved_in_either_layout_load_into_the_other(overrides: list[str]) -> None:
    network = build.build_network(compose.cell(overrides).config)
    for one, other in ((network, channels_first(network)), (channels_first(network), network)):
        file = io.BytesIO()
        torch.save({key: value + 1 for key, value in one.state_dict().items()}, file)
        file.seek(0)
        strides = [parameter.stride() for parameter in other.parameters()]
        other.load_state_dict(torch.load(file, weights_only=True))
        assert [parameter.stride() for parameter in other.parameters()] == strides
        for key, value in other.state_dict().items():
            assert torch.equal(value, one.state_dict()[key] + 1)
