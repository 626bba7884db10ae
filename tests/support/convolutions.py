"""Convolutions of the same weights, direct and transformed, and what is compared of them."""

import copy

import torch
from torch import Tensor, nn

from capsweep.model.convolution import Convolution

PRIMARY = 256, 256, 9, 2  # of CapsNet: channels, outputs, kernel, stride


def draw_normal(*shape: int) -> Tensor:
    """The same numbers of float64 each time that a shape is asked for."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def make_layers(*sizes: int, same: bool = False) -> tuple[Convolution, Convolution]:
    """Of the same weights: direct and transformed."""
    torch.manual_seed(0)
    channels, outputs, kernel, stride = sizes
    direct = Convolution(channels, outputs, kernel, stride, same)
    transformed = copy.deepcopy(direct)
    direct.method, transformed.method = "direct", "transformed"
    return direct, transformed


def compute_results(layer: nn.Module, images_BCHW: Tensor) -> list[Tensor]:
    """Features, and the gradients by images, weights and bias."""
    images_BCHW = images_BCHW.detach().requires_grad_()
    features_BCHW = layer(images_BCHW)
    inputs = [images_BCHW, *layer.parameters()]
    gradient = draw_normal(*features_BCHW.shape).to(features_BCHW)
    return [features_BCHW, *torch.autograd.grad(features_BCHW, inputs, gradient)]


def find_relative_error(actual: Tensor, expected: Tensor) -> float:
    """The largest, in units of the largest expected number."""
    return ((actual.double() - expected).abs().max() / expected.abs().max()).item()
