"""Residual networks, beside torchvision's blocks."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsweep.model.resnet import ResidualBlock, ResNetStem
from capsweep.runtime import lightning as lightning  # before torchvision

from torchvision.models.resnet import BasicBlock  # isort: skip


class Shortcut(nn.Module):
    """Every second pixel and channels of zeros: option A of He et al. 2015."""

    def forward(self, features: Tensor) -> Tensor:
        return F.pad(features[:, :, ::2, ::2], (0, 0, 0, 0, 0, features.shape[1]))


@pytest.mark.parametrize(("channels", "outputs", "stride"), [(4, 4, 1), (4, 8, 2)])
@pytest.mark.parametrize("is_training", [True, False])
def test_a_block_and_its_gradients_are_those_of_torchvision(
    channels: int, outputs: int, stride: int, is_training: bool
) -> None:
    torch.manual_seed(0)
    block = ResidualBlock(channels, outputs, stride).double().train(is_training)
    shortcut = None if stride == 1 else Shortcut()
    expected = BasicBlock(channels, outputs, stride, shortcut).double().train(is_training)
    names = {"norm1": "bn1", "norm2": "bn2"}
    state = {
        ".".join([names.get(name, name) for name in key.split(".")]): value
        for key, value in block.state_dict().items()
    }
    expected.load_state_dict(state)
    images = torch.randn(3, channels, 7, 7, dtype=torch.float64)
    for module in (block, expected):
        module(images).square().sum().backward()
    torch.testing.assert_close(block(images), expected(images))
    gradients = {name: parameter.grad for name, parameter in expected.named_parameters()}
    for name, parameter in block.named_parameters():
        theirs = gradients[".".join([names.get(part, part) for part in name.split(".")])]
        torch.testing.assert_close(parameter.grad, theirs)


@pytest.mark.parametrize("size", [32, 31, 9])
def test_a_stem_says_which_features_it_has(size: int) -> None:
    stem = ResNetStem(3, width=2, blocks=1)
    features = stem(torch.zeros(2, 3, size, size))
    assert features.shape[1:] == (stem.outputs, *[stem.count_positions(size)] * 2)
