"""Convolutions with large kernels by the bilinear form: the numbers of direct convolution."""

import copy
from typing import Any

import pytest
import torch
from convolutions import PRIMARY, compute_results, draw_normal, find_relative_error, make_layers
from hypothesis import given
from hypothesis import strategies as st
from largest_tensor import LargestTensor
from torch.nn import functional as F

from capsweep.model import transformed_convolution
from capsweep.model.large_kernels import Tiling


@given(
    batch=st.integers(1, 3),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(4, 11), st.integers(1, 2)),
    further=st.tuples(st.integers(0, 17), st.integers(0, 17)),
    same=st.booleans(),
)
@pytest.mark.law
def test_outputs_and_gradients_are_those_of_direct_convolution(
    batch: int, sizes: tuple[int, ...], further: tuple[int, int], same: bool
) -> None:
    channels, _, kernel, _ = sizes
    direct, transformed = make_layers(*sizes, same=same)
    height, width = (1 + count if same else kernel + count for count in further)
    images_BCHW = draw_normal(batch, channels, height, width)
    expected, actual = (
        compute_results(layer.double(), images_BCHW) for layer in (direct, transformed)
    )
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    assert next(iter(transformed.methods)).startswith("transformed")


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize(("kernel", "stride"), [(4, 1), (5, 1), (5, 2), (9, 2)])
def test_tiles_of_every_size_give_the_outputs_of_direct_convolution(
    kernel: int, stride: int, size: int
) -> None:
    tiling = Tiling(kernel, stride, size + (size + -(-kernel // stride) - 1) % 2)
    images_BCHW, weight_OCKK = draw_normal(2, 3, 21, 18), draw_normal(2, 3, kernel, kernel)
    places = (21 - kernel) // stride + 1, (18 - kernel) // stride + 1
    expected = F.conv2d(images_BCHW, weight_OCKK, None, stride)
    arguments = images_BCHW, weight_OCKK, draw_normal(2).zero_(), tiling, (0, 0), places
    torch.testing.assert_close(transformed_convolution.convolve(*arguments), expected)


@pytest.mark.parametrize("name", ["CHANNELS_AT_ONCE", "NUMBERS_AT_ONCE", "CACHED", "MOST_KEPT"])
def test_what_is_computed_at_once_or_kept_changes_no_number(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    _, layer = make_layers(7, 4, 9, 2)
    images_BCHW = draw_normal(5, 7, 23, 20)
    at_once = compute_results(layer.double(), images_BCHW)
    # Blocks of 5 and 4 of the 14 channels of a row of phases; an image at a time; nothing kept.
    monkeypatch.setattr(transformed_convolution, name, 5)
    torch.testing.assert_close(compute_results(layer, images_BCHW), at_once)


def test_no_array_is_larger_than_the_images_or_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    _, layer = make_layers(64, 64, 5, 1, same=True)
    images_BCHW = draw_normal(8, 64, 20, 20).float().requires_grad_()
    monkeypatch.setattr(transformed_convolution, "NUMBERS_AT_ONCE", images_BCHW.numel())
    monkeypatch.setattr(transformed_convolution, "MOST_KEPT", 0)
    with LargestTensor() as largest:
        layer(images_BCHW).sum().backward()
    assert layer.methods == {"transformed, tiles of 10x10"}
    assert largest.numbers == images_BCHW.numel()


def test_factors_are_kept_in_training_alone_and_within_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, layer = make_layers(2, 3, 5, 1)
    images_BCHW = draw_normal(4, 2, 11, 13).float()
    monkeypatch.setattr(transformed_convolution, "NUMBERS_AT_ONCE", 5)  # an image at a time

    def count_kept() -> int:
        node: Any = layer(images_BCHW).grad_fn
        return sum(array.numel() for array in node.saved_tensors[2:])

    kept = count_kept()
    assert kept > 0
    monkeypatch.setattr(transformed_convolution, "MOST_KEPT", kept)
    assert count_kept() == kept
    monkeypatch.setattr(transformed_convolution, "MOST_KEPT", kept - 1)
    assert count_kept() == 0
    with torch.no_grad():
        assert layer(images_BCHW).grad_fn is None


def test_it_is_not_less_exact_than_direct_convolution() -> None:
    direct, transformed = make_layers(*PRIMARY)
    images_BCHW = draw_normal(4, 256, 20, 20)
    exact = compute_results(copy.deepcopy(direct).double(), images_BCHW)
    laid_out = images_BCHW.float().to(memory_format=torch.channels_last)
    errors = [
        max(map(find_relative_error, compute_results(layer, laid_out), exact))
        for layer in (direct, transformed)
    ]
    assert errors[1] <= max(errors[0], 1e-6)


def test_a_graph_can_be_gone_back_through_twice_and_has_no_second_derivative() -> None:
    _, layer = make_layers(2, 3, 5, 1)
    loss = layer(draw_normal(2, 2, 9, 9).float()).square().sum()
    first = torch.autograd.grad(loss, layer.weight, retain_graph=True)
    second = torch.autograd.grad(loss, layer.weight, retain_graph=True)
    torch.testing.assert_close(second, first)
    (gradient,) = torch.autograd.grad(loss, layer.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
