"""Capsule layers.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, C H W image.
"""

from functools import partial

import pytest
import torch
from torch import Tensor

from capsweep.model.capsnet import InitialWeights
from capsweep.model.capsules import ClassCapsules, PrimaryCapsules, squash
from capsweep.model.convolution import Convolution
from capsweep.model.routing.dynamic import DynamicRouting

TYPES, POSE = 3, 4


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _primary(kernel: int, stride: int, divisor: int = 1) -> PrimaryCapsules:
    return PrimaryCapsules(Convolution(2, TYPES * POSE, kernel, stride, False, divisor), POSE)


def test_a_primary_capsule_is_neighbouring_channels_at_one_place() -> None:
    layer = _primary(kernel=3, stride=2)
    features_BCHW = _normal(2, 2, 7, 9)
    channels_BCHW = layer.conv(features_BCHW)
    rows, columns = channels_BCHW.shape[2:]
    capsules_BIP = layer(features_BCHW)
    assert capsules_BIP.shape == (2, TYPES * rows * columns, POSE)
    for kind in range(TYPES):
        for y in range(rows):
            for x in range(columns):
                at_one_place_BP = channels_BCHW[:, kind * POSE : (kind + 1) * POSE, y, x]
                capsule_BP = capsules_BIP[:, (kind * rows + y) * columns + x]
                torch.testing.assert_close(capsule_BP, squash(at_one_place_BP))


@pytest.mark.parametrize("sizes", [(200, 10, 16), (1000, 3, 4)], ids=["wide", "long"])
@pytest.mark.parametrize("gain", [0.5, 2.0])
def test_vote_gain_is_the_length_of_the_first_input_of_a_class(
    sizes: tuple[int, int, int], gain: float
) -> None:
    children, classes, class_pose = sizes
    torch.manual_seed(0)
    layer = ClassCapsules(
        num_children=children,
        child_pose=8,
        num_classes=classes,
        class_pose=class_pose,
        routing=partial(DynamicRouting, num_iters=1, bias=False, impl="reference"),
    )
    InitialWeights().draw_votes(layer.weight_IJDP, gain)
    pose_BIP = torch.nn.functional.normalize(_normal(64, children, 8), dim=-1)
    length_BJ = layer(pose_BIP).act_BJ
    input_squared_BJ = length_BJ / (1 - length_BJ)  # |v| = |s|^2 / (1 + |s|^2)
    assert input_squared_BJ.mean().sqrt().item() == pytest.approx(gain, rel=0.15)
