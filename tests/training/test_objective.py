"""The objective: classification, and every digit of an image drawn from its own capsule alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.data.batches import Batch
from capsweep.data.images import PreparedSplits
from capsweep.errors import ConfigError
from capsweep.model.losses import spread_loss
from capsweep.training import build
from capsweep.training.module import CapsuleTask
from capsweep.training.step import Losses, Objective

WEIGHT = 0.01


def make_network(config: Any) -> tuple[nn.Module, Objective]:
    torch.manual_seed(0)
    return build.build_network(config), build.build_objective(config)


@pytest.fixture
def config(small_cell: Callable[..., Cell]) -> Any:
    weight = f"loss.reconstruction.weight={WEIGHT}"
    return small_cell("dataset=multimnist", "dataset/source=digits", weight).config


@pytest.fixture
def pairs() -> Batch:
    generator = torch.Generator().manual_seed(1)
    images_BCHW = torch.rand(3, 1, 36, 36, generator=generator)
    targets_BLCHW = torch.rand(3, 2, 1, 36, 36, generator=generator)
    return Batch(images_BCHW, torch.tensor([[3, 0], [9, 1], [0, 3]]), targets_BLCHW)


def test_losses_and_gradients_of_two_digits_are_those_of_two_decoder_passes(
    config: Any, pairs: Batch
) -> None:
    network, objective = make_network(config)
    losses = objective(network, pairs)
    output, targets_BLCHW = network(pairs.images_BCHW), pairs.targets_BLCHW
    assert targets_BLCHW is not None
    assert output.pose_BJD is not None
    assert losses.reconstruction is not None
    assert losses.drawn_BLCHW is not None
    reconstruction = torch.zeros(())
    for digit in range(2):
        # One pass of the decoder: the capsule of one label an image, all others zero.
        only_BJD = output.pose_BJD * F.one_hot(pairs.labels[:, digit], 10)[..., None]
        drawn_BCHW = network.get_submodule("decoder")(only_BJD, torch.ones(3, 10))
        torch.testing.assert_close(losses.drawn_BLCHW[:, digit], drawn_BCHW)
        wrong_BCHW = (drawn_BCHW - targets_BLCHW[:, digit]).square()
        reconstruction = reconstruction + wrong_BCHW.sum() / len(pairs.labels)
    torch.testing.assert_close(losses.reconstruction, reconstruction)

    target_BN = F.one_hot(pairs.labels, 10).sum(dim=1).float()
    present_BN = torch.relu(0.9 - output.scores_BN).square()
    absent_BN = torch.relu(output.scores_BN - 0.1).square()
    margin = (target_BN * present_BN + 0.5 * (1 - target_BN) * absent_BN).sum(dim=1).mean()
    torch.testing.assert_close(losses.total, margin + WEIGHT * reconstruction)
    weights = list(network.parameters())
    gradients = torch.autograd.grad(losses.total, weights)
    expected = torch.autograd.grad(margin + WEIGHT * reconstruction, weights)
    for found, one in zip(gradients, expected, strict=True):
        torch.testing.assert_close(found, one, rtol=1e-4, atol=1e-6)


def weigh(config: Any, weights: Any, trained_N: Tensor | None = None) -> tuple[nn.Module, Any, Any]:
    """A network in evaluation, its objective without weights, and the one with weights."""
    network, plain = make_network(config)
    task = CapsuleTask(network, plain, None, {**config, "loss": {"class_weight": weights}})
    build.weigh_classes(task, PreparedSplits({}, {}, (), trained_N), torch.device("cpu"))
    return network.eval(), plain, task.objective


@pytest.mark.parametrize("loss", ["margin", "spread", "cross_entropy", "binary_cross_entropy"])
@pytest.mark.parametrize("labels", [[0, 1, 1, 7], [[0, 1], [1, 2], [3, 1], [7, 8]]])
def test_a_class_weighs_in_every_loss_as_in_the_cross_entropy_of_torch(
    loss: str, labels: Any, small_cell: Callable[..., Cell]
) -> None:
    model = "model=cnn_small" if "cross" in loss else "loss.reconstruction.weight=0"
    weights, labels = torch.tensor([1.0, 3.0, *[0.5] * 8]), torch.tensor(labels)
    network, plain, weighted = weigh(small_cell(f"loss={loss}", model).config, weights.tolist())
    images_BCHW, weight_B = torch.rand(4, 1, 28, 28), weights[labels].reshape(4, -1).mean(dim=1)
    alone = [Batch(images_BCHW[i : i + 1], labels[i : i + 1]) for i in range(4)]
    losses_B = torch.stack([plain(network, batch).total for batch in alone])
    found = weighted(network, Batch(images_BCHW, labels)).total
    torch.testing.assert_close(found, (weight_B * losses_B).sum() / weight_B.sum())
    if loss == "cross_entropy" and labels.dim() == 1:
        of_torch = F.cross_entropy(network(images_BCHW).scores_BN, labels, weights)
        torch.testing.assert_close(found, of_torch)


def test_balanced_weights_are_those_of_the_training_images(config: Any) -> None:
    trained_N = torch.tensor([0, 0, 0, *range(10)])
    _, _, weighted = weigh(config, "balanced", trained_N)
    torch.testing.assert_close(weighted.class_weight_N, torch.tensor([13 / 40, *[1.3] * 9]))
    with pytest.raises(ConfigError, match=r"^loss\.class_weight=balanced .* shards; set a list"):
        weigh(config, "balanced")


def test_a_step_has_the_margin_of_its_place_and_an_evaluation_the_last() -> None:
    noise = torch.Generator().manual_seed(2)
    digits = Batch(torch.rand(5, 1, 28, 28, generator=noise), torch.tensor([3, 0, 9, 3, 1]))
    network, objective = make_network(compose.cell(["model=matrix_capsnet_tiny"]).config)
    target_BN = F.one_hot(digits.labels, 10).float()
    for step, margin in ((0, 0.2), (5, 0.55), (None, 0.9)):
        given = None if step is None else objective.margin_at(step, 10)
        losses: Losses = objective(network, digits, given)
        expected = spread_loss(losses.scores_BN, target_BN, margin=margin, reduction="mean")
        torch.testing.assert_close(losses.total, expected)
