"""Capsule layers, and the squashing non-linearity.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, C H W image.
"""

import itertools
import os
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from torch import Tensor

from capsweep.model.capsnet import ClassCapsules, InitialWeights
from capsweep.model.capsules import PrimaryCapsules, squash
from capsweep.model.convolution import Convolution
from capsweep.model.routing.dynamic import DynamicRouting

TYPES, POSE = 3, 4


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_a_primary_capsule_is_neighbouring_channels_at_one_place() -> None:
    layer = PrimaryCapsules(Convolution(2, TYPES * POSE, 3, 2, same=False), POSE)
    features_BCHW = _normal(2, 2, 7, 9)
    channels_BCHW = layer.conv(features_BCHW)
    rows, columns = channels_BCHW.shape[2:]
    capsules_BIP = layer(features_BCHW)
    assert capsules_BIP.shape == (2, TYPES * rows * columns, POSE)
    for kind, y, x in itertools.product(range(TYPES), range(rows), range(columns)):
        at_one_place_BP = channels_BCHW[:, kind * POSE : (kind + 1) * POSE, y, x]
        capsule_BP = capsules_BIP[:, (kind * rows + y) * columns + x]
        torch.testing.assert_close(capsule_BP, squash(at_one_place_BP))


def _squash_by_torch(channel_BCHW: Tensor, pose: int, dtype: torch.dtype) -> Tensor:
    grouped = channel_BCHW.unflatten(1, (-1, pose)).movedim(2, -1).flatten(1, 3)
    return squash(grouped.to(dtype))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "dtypes", [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)], ids=str
)
@pytest.mark.parametrize(  # images, types, pose, height, width
    "sizes",
    [(3, 5, 8, 4, 3), (2, 3, 5, 1, 7), (1, 1, 1, 1, 1), (2, 40, 3, 3, 1), (0, 2, 2, 2, 2)],
)
def test_the_kernel_of_primary_capsules_does_what_torch_does(
    sizes: tuple[int, ...],
    dtypes: tuple[torch.dtype, torch.dtype],
    memory_format: torch.memory_format,
    device: str,
) -> None:
    (images, types, pose, *places), (numbers, poses) = sizes, dtypes
    if device == "cpu" and "TRITON_INTERPRET" not in os.environ:
        pytest.skip("kernels run on a GPU, or in Triton's interpreter")
    kernels = pytest.importorskip("capsweep.model.squash_kernels", reason="triton is not installed")
    channel_BCHW = 2 * _normal(images, types * pose, *places).to(device, numbers)
    channel_BCHW[:1, :pose] = 0  # a capsule without length, at each place
    results = []
    for squash_channels in (kernels.SquashedChannels.apply, _squash_by_torch):
        leaf = channel_BCHW.contiguous(memory_format=memory_format).detach().requires_grad_()
        pose_BIP = squash_channels(leaf, pose, poses)
        (gradient,) = torch.autograd.grad(pose_BIP, leaf, _normal(*pose_BIP.shape).to(pose_BIP))
        results.append((pose_BIP, gradient))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("sizes", [(200, 10, 16), (1000, 3, 4)], ids=["wide", "long"])
@pytest.mark.parametrize("gain", [0.5, 2.0])
def test_vote_gain_is_the_length_of_the_first_input_of_a_class(
    sizes: tuple[int, int, int], gain: float
) -> None:
    children, classes, class_pose = sizes
    torch.manual_seed(0)
    routing = partial(DynamicRouting, num_iters=1, bias=False, impl="reference")
    layer = ClassCapsules(children, 8, classes, class_pose, routing)
    InitialWeights().draw_votes(layer.weight_IJDP, gain)
    pose_BIP = torch.nn.functional.normalize(_normal(64, children, 8), dim=-1)
    length_BJ = layer(pose_BIP).act_BJ
    input_squared_BJ = length_BJ / (1 - length_BJ)  # |v| = |s|^2 / (1 + |s|^2)
    assert input_squared_BJ.mean().sqrt().item() == pytest.approx(gain, rel=0.15)


# Above a length of 1e7 the float64 nearest to 1 - 1/length^2 is 1 itself.
@at_most_examples(100)
@given(dimensions=st.integers(1, 9), seed=st.integers(0, 2**32 - 1), exponent=st.floats(-7, 7))
def test_length_is_below_one_and_as_in_equation_1(
    dimensions: int, seed: int, exponent: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(5, dimensions, generator=generator, dtype=torch.float64)
    s = torch.nn.functional.normalize(directions, dim=-1) * 10**exponent
    length = torch.linalg.vector_norm(squash(s), dim=-1)
    squared = 10 ** (2 * exponent)
    assert ((length > 0) & (length <= 1)).all()
    torch.testing.assert_close(length, torch.full_like(length, squared / (1 + squared)))


@pytest.mark.parametrize("magnitude", [0.0, 1e-30, 1e-15, 1e15])
def test_value_and_gradient_are_finite_at_extremes_of_float32(magnitude: float) -> None:
    s = torch.full((2, 3), magnitude, requires_grad=True)
    v = squash(s)
    v.sum().backward()
    assert v.isfinite().all()
    assert (torch.linalg.vector_norm(v.detach(), dim=-1) <= 1 + 1e-6).all()
    assert s.grad is not None
    assert s.grad.isfinite().all()
    if magnitude == 0:
        assert not v.any()
        assert not s.grad.any()
