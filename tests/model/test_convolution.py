"""The convolution of capsule networks: TensorFlow's padding, and weighted sums shared out.

Shape letters: B batch, C H W image.
"""

import pytest
import torch
from convolutions import draw_normal
from torch.nn import functional as F

from capsweep.model.convolution import Convolution

# Size, kernel and stride along one axis; then, by TensorFlow's rule for SAME, worked out by hand:
# places = ceil(size / stride), missing = max((places - 1) stride + kernel - size, 0), of which
# half, rounded down, stands before and the rest after.
SAME = [
    (24, 9, 1, 24, 4, 4),  # 23 + 9 - 24 = 8: the first convolution of CIFAR-10
    (24, 9, 2, 12, 3, 4),  # 22 + 9 - 24 = 7: its primary capsules
    (5, 2, 1, 5, 0, 1),  # 4 + 2 - 5 = 1: an even kernel looks ahead
    (6, 3, 2, 3, 0, 1),  # 4 + 3 - 6 = 1
    (7, 3, 2, 4, 1, 1),  # 6 + 3 - 7 = 2
    (10, 4, 3, 4, 1, 2),  # 9 + 4 - 10 = 3
    (11, 5, 4, 3, 1, 1),  # 8 + 5 - 11 = 2
    (5, 1, 3, 2, 0, 0),  # 3 + 1 - 5 < 0: what the stride steps over is not looked at
    (8, 2, 4, 2, 0, 0),  # 4 + 2 - 8 < 0
    (1, 9, 2, 1, 4, 4),  # 0 + 9 - 1 = 8: a kernel larger than the image
]


def _convolution(kernel: int, stride: int, same: bool, divisor: int = 1) -> Convolution:
    """Two channels to three, of random weights and bias."""
    torch.manual_seed(0)
    return Convolution(2, 3, kernel, stride, same, divisor).double()


@pytest.mark.parametrize(("size", "kernel", "stride", "places", "before", "after"), SAME)
def test_same_padding_has_a_place_for_every_stride_begun_and_the_odd_zero_below_and_right(
    size: int, kernel: int, stride: int, places: int, before: int, after: int
) -> None:
    layer = _convolution(kernel, stride, same=True)
    assert layer.count_positions(size) == places
    images_BCHW = draw_normal(2, 2, size, size)
    padded_BCHW = F.pad(images_BCHW, (before, after, before, after))
    expected_BCHW = F.conv2d(padded_BCHW, layer.weight, layer.bias, stride)
    torch.testing.assert_close(layer(images_BCHW), expected_BCHW)
    column_BCHW = images_BCHW[:, :, :, :1]
    assert layer(column_BCHW).shape[2:] == (places, 1)


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (9, 1), (9, 2), (4, 3), (2, 5)])
def test_valid_padding_is_a_plain_convolution(kernel: int, stride: int) -> None:
    layer = _convolution(kernel, stride, same=False)
    images_BCHW = draw_normal(2, 2, 11, 20)
    expected_BCHW = F.conv2d(images_BCHW, layer.weight, layer.bias, stride)
    assert torch.equal(layer(images_BCHW), expected_BCHW)
    assert expected_BCHW.shape[2:] == (layer.count_positions(11), layer.count_positions(20))


@pytest.mark.parametrize("same", [False, True], ids=["valid", "same"])
@pytest.mark.parametrize("divisor", [2, 33])
def test_the_divisor_divides_the_weighted_sums_and_not_the_bias(same: bool, divisor: int) -> None:
    whole, divided = (_convolution(3, 2, same, number) for number in (1, divisor))
    images_BCHW = draw_normal(2, 2, 7, 9)
    assert whole.bias is not None
    bias_C11 = whole.bias[:, None, None]
    sums_BCHW = whole(images_BCHW) - bias_C11
    torch.testing.assert_close(divided(images_BCHW), sums_BCHW / divisor + bias_C11)
