"""The convolutional control, and that it is a fair one."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from capsweep.config import compose
from capsweep.model.cnn import ConvNet
from capsweep.training import build


def _flops(*overrides: str) -> int:
    """Floating-point operations of one image, the reconstruction included where there is one."""
    network = build.network(compose.cell(overrides).config)
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


def test_output_is_a_logit_per_class_and_no_pose() -> None:
    output = build.network(compose.cell(["model=cnn_small"]).config)(torch.rand(3, 1, 28, 28))
    assert output.scores_BN.shape == (3, 10)
    assert output.pose_BJD is None


@pytest.mark.parametrize("image_shape", [(1, 28, 28), (3, 7, 13), (2, 4, 4)])
def test_images_of_any_size_fit(image_shape: tuple[int, int, int]) -> None:
    network = ConvNet(image_shape, 4, {"channels": [2, 3, 5], "kernel": 5}, hidden=6, dropout=0.5)
    assert network(torch.rand(2, *image_shape)).scores_BN.shape == (2, 4)


def test_a_prediction_does_not_depend_on_batch_mates() -> None:
    network = build.network(compose.cell(["model=cnn_small"]).config).eval()
    images_BCHW = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    alone = network(images_BCHW[1:2]).scores_BN[0]
    torch.testing.assert_close(alone, network(images_BCHW).scores_BN[1])


def test_dropout_is_for_training_only() -> None:
    torch.manual_seed(0)
    network = build.network(compose.cell(["model=cnn_small"]).config)
    images_BCHW = torch.rand(2, 1, 28, 28)

    def twice_the_same() -> bool:
        return torch.equal(network(images_BCHW).scores_BN, network(images_BCHW).scores_BN)

    network.train()
    assert not twice_the_same()
    network.eval()
    assert twice_the_same()


def test_gradient_reaches_every_parameter() -> None:
    torch.manual_seed(0)
    network = build.network(compose.cell(["model=cnn_small"]).config)
    network(torch.rand(4, 1, 28, 28)).scores_BN.square().sum().backward()
    assert all(parameter.grad.any() for parameter in network.parameters())
