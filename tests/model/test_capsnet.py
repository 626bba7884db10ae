"""CapsNet, built from configuration as every cell builds it."""

import pytest
import torch
from torch import Tensor

from capsweep.config import compose
from capsweep.data.batches import Batch, to_unit
from capsweep.model.capsnet import CapsNet, Decoder
from capsweep.training import build
from capsweep.training.size import network_size

NUM_IMAGES = 16


def _network(*overrides: str, seed: int = 0) -> CapsNet:
    torch.manual_seed(seed)
    built = build.build_network(compose.cell(overrides).config)
    assert isinstance(built, CapsNet)
    return built


@pytest.fixture(scope="module")
def digits() -> Batch:
    """The first real digits of the training split."""
    examples = build.build_reader(compose.cell([]).config).read("").train
    return Batch(to_unit(examples.images_NCHW[:NUM_IMAGES]), examples.labels_N[:NUM_IMAGES])


def test_the_trace_of_its_class_capsules_is_kept_on_request(digits: Batch) -> None:
    network = _network("routing.num_iters=2")
    assert network(digits.images_BCHW).traces is None
    output = network(digits.images_BCHW, with_trace=True)
    assert list(output.traces) == ["classes"]
    trace = output.traces["classes"]
    assert len(trace) == 2
    torch.testing.assert_close(trace[-1]["pose"][:, 0], output.pose_BJD)


@pytest.mark.parametrize("num_iters", [1, 3])
def test_a_prediction_does_not_depend_on_batch_mates(digits: Batch, num_iters: int) -> None:
    network = _network(f"routing.num_iters={num_iters}")
    together = network(digits.images_BCHW)
    for item in (0, NUM_IMAGES - 1):
        alone = network(digits.images_BCHW[item : item + 1])
        torch.testing.assert_close(alone.scores_BN[0], together.scores_BN[item])
        torch.testing.assert_close(alone.pose_BJD[0], together.pose_BJD[item])


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("model.conv.kernel=29", r"model\.conv\.kernel"),
        ("model.primary.kernel=21", r"model\.primary\.kernel"),
    ],
)
def test_a_kernel_that_does_not_fit_is_refused_by_name(override: str, key: str) -> None:
    with pytest.raises(ValueError, match=rf"{key}.* 28 pixels"):
        network_size(compose.cell([override]).config)


def test_a_step_with_reconstruction_changes_every_parameter_and_lowers_the_loss(
    digits: Batch,
) -> None:
    config = compose.cell([]).config
    network, objective = _network(), build.build_objective(config)
    before = {name: parameter.clone() for name, parameter in network.named_parameters()}
    optimizer = build.build_optimizer(config)(network)
    loss = objective(network, digits).total
    loss.backward()
    optimizer.step()
    unchanged = [n for n, parameter in network.named_parameters() if parameter.equal(before[n])]
    assert unchanged == []
    assert objective(network, digits).total < loss


@pytest.fixture
def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder([8, 16], num_classes=3, class_pose=4, image_shape=(2, 5, 7))


@pytest.fixture
def poses() -> Tensor:
    return torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def masks() -> Tensor:
    """Class 1 of the first item, class 2 of the second."""
    return torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


def test_an_image_has_the_shape_asked_for_and_values_in_0_to_1(
    decoder: Decoder, poses: Tensor, masks: Tensor
) -> None:
    images_BCHW = decoder(100 * poses, masks)
    assert images_BCHW.shape == (2, 2, 5, 7)
    assert ((images_BCHW >= 0) & (images_BCHW <= 1)).all()


def test_the_pose_of_a_masked_class_is_not_seen(
    decoder: Decoder, poses: Tensor, masks: Tensor
) -> None:
    changed_BJD = poses + 10 * (1 - masks)[..., None]
    assert torch.equal(decoder(changed_BJD, masks), decoder(poses, masks))
