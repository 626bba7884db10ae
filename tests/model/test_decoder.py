"""The decoder: images from the class poses that are not masked."""

import pytest
import torch
from torch import Tensor, nn

from capsweep.model.decoder import Decoder

CLASSES, POSE, IMAGE = 3, 4, (2, 5, 7)


@pytest.fixture
def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder([8, 16], num_classes=CLASSES, class_pose=POSE, image_shape=IMAGE)


@pytest.fixture
def poses() -> Tensor:
    return torch.randn(2, CLASSES, POSE, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def masks() -> Tensor:
    """Class 1 of the first item, class 2 of the second."""
    return torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


def test_an_image_has_the_shape_asked_for_and_values_in_0_to_1(
    decoder: Decoder, poses: Tensor, masks: Tensor
) -> None:
    images_BCHW = decoder(100 * poses, masks)
    assert images_BCHW.shape == (2, *IMAGE)
    assert ((images_BCHW >= 0) & (images_BCHW <= 1)).all()


def test_the_pose_of_a_masked_class_is_not_seen(
    decoder: Decoder, poses: Tensor, masks: Tensor
) -> None:
    changed_BJD = poses + 10 * (1 - masks)[..., None]
    assert torch.equal(decoder(changed_BJD, masks), decoder(poses, masks))


def test_layers_are_those_of_figure_2(decoder: Decoder) -> None:
    assert [type(layer) for layer in decoder.layers] == [
        nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear, nn.Sigmoid,
    ]  # fmt: skip
    linear = [layer for layer in decoder.layers if isinstance(layer, nn.Linear)]
    sizes = [(layer.in_features, layer.out_features) for layer in linear]
    assert sizes == [(CLASSES * POSE, 8), (8, 16), (16, 2 * 5 * 7)]
