"""Two digits in one image: each drawn from its own capsule alone, against itself alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsweep.config.cell import Cell
from capsweep.data.batches import Batch
from capsweep.model.capsules import NetworkOutput
from capsweep.training import build
from capsweep.training.objective import Objective

WEIGHT = 0.01


@pytest.fixture
def config(small_cell: Callable[..., Cell]) -> dict[str, Any]:
    weight = f"loss.reconstruction.weight={WEIGHT}"
    small = ["model.primary.types=2", "model.conv.channels=8", "model.decoder.hidden=[16]"]
    chosen = ["dataset=multimnist", "dataset/source=digits", "model=capsnet_small", *small]
    return dict(small_cell(*chosen, weight).config)


@pytest.fixture
def network(config: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    return build.build_network(config)


@pytest.fixture
def pairs() -> Batch:
    generator = torch.Generator().manual_seed(1)
    images_BCHW = torch.rand(3, 1, 36, 36, generator=generator)
    targets_BLCHW = torch.rand(3, 2, 1, 36, 36, generator=generator)
    return Batch(images_BCHW, torch.tensor([[3, 0], [9, 1], [0, 3]]), targets_BLCHW)


def drawn_alone(network: nn.Module, output: NetworkOutput, label_B: Tensor) -> Tensor:
    """One pass of the decoder: the capsule of one label an image, all others zero."""
    assert output.pose_BJD is not None
    only_BJD = torch.zeros_like(output.pose_BJD)
    for image, label in enumerate(label_B.tolist()):
        only_BJD[image, label] = output.pose_BJD[image, label]
    decoder = network.get_submodule("decoder")
    return decoder(only_BJD, torch.ones(only_BJD.shape[:2]))


def test_the_losses_are_those_of_two_decoder_passes(
    config: dict[str, Any], network: nn.Module, pairs: Batch
) -> None:
    losses = build.build_objective(config)(network, pairs)
    output = network(pairs.images_BCHW)
    assert pairs.targets_BLCHW is not None
    assert losses.reconstruction is not None
    assert losses.drawn_BLCHW is not None
    reconstruction = torch.zeros(())
    for digit in range(2):
        drawn_BCHW = drawn_alone(network, output, pairs.labels[:, digit])
        torch.testing.assert_close(losses.drawn_BLCHW[:, digit], drawn_BCHW)
        wrong_BCHW = (drawn_BCHW - pairs.targets_BLCHW[:, digit]).square()
        reconstruction = reconstruction + wrong_BCHW.sum() / len(pairs.labels)
    torch.testing.assert_close(losses.reconstruction, reconstruction)

    target_BN = F.one_hot(pairs.labels, 10).sum(dim=1).float()
    present_BN = torch.relu(0.9 - output.scores_BN).square()
    absent_BN = torch.relu(output.scores_BN - 0.1).square()
    margin = (target_BN * present_BN + 0.5 * (1 - target_BN) * absent_BN).sum(dim=1).mean()
    torch.testing.assert_close(losses.total, margin + WEIGHT * reconstruction)


def test_gradients_are_those_of_two_decoder_passes(
    config: dict[str, Any], network: nn.Module, pairs: Batch
) -> None:
    assert pairs.targets_BLCHW is not None
    weights = list(network.parameters())
    losses = build.build_objective(config)(network, pairs)
    assert losses.reconstruction is not None
    found = torch.autograd.grad(losses.reconstruction, weights, allow_unused=True)
    output = network(pairs.images_BCHW)
    explicit = sum(
        (drawn_alone(network, output, label_B) - target_BCHW).square().sum()
        for label_B, target_BCHW in zip(
            pairs.labels.unbind(1), pairs.targets_BLCHW.unbind(1), strict=True
        )
    ) / len(pairs.labels)
    expected = torch.autograd.grad(explicit, weights, allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_order_of_the_two_digits_changes_neither_loss(
    config: dict[str, Any], network: nn.Module, pairs: Batch
) -> None:
    assert pairs.targets_BLCHW is not None
    turned = Batch(pairs.images_BCHW, pairs.labels.flip(1), pairs.targets_BLCHW.flip(1))
    one, other = (build.build_objective(config)(network, batch) for batch in (pairs, turned))
    torch.testing.assert_close(one.total, other.total)
    torch.testing.assert_close(one.reconstruction, other.reconstruction)
    crossed = Batch(pairs.images_BCHW, pairs.labels, pairs.targets_BLCHW.flip(1))
    assert build.build_objective(config)(network, crossed).reconstruction != one.reconstruction


def test_a_digits_drawing_does_not_know_the_other_digits_capsule(
    config: dict[str, Any], network: nn.Module, pairs: Batch
) -> None:
    first = build.build_objective(config)(network, pairs)
    labels_BL = torch.stack([pairs.labels[:, 0], (pairs.labels[:, 1] + 5) % 10], dim=1)
    other = Batch(pairs.images_BCHW, labels_BL, pairs.targets_BLCHW)
    second = build.build_objective(config)(network, other)
    assert first.drawn_BLCHW is not None
    assert second.drawn_BLCHW is not None
    torch.testing.assert_close(first.drawn_BLCHW[:, 0], second.drawn_BLCHW[:, 0])
    assert not torch.equal(first.drawn_BLCHW[:, 1], second.drawn_BLCHW[:, 1])


def test_without_reconstruction_nothing_is_drawn(
    small_cell: Callable[..., Cell], pairs: Batch
) -> None:
    small = ["model.primary.types=2", "model.conv.channels=8"]
    config = small_cell("dataset=multimnist", "loss.reconstruction.weight=0", *small).config
    losses = build.build_objective(config)(build.build_network(config), pairs)
    assert losses.reconstruction is None
    assert losses.drawn_BLCHW is None


def test_two_classes_are_a_decision_each_for_a_network_of_logits(
    small_cell: Callable[..., Cell], pairs: Batch
) -> None:
    chosen = ["dataset=multimnist", "model=cnn_small", "loss=binary_cross_entropy"]
    config = small_cell(*chosen).config
    torch.manual_seed(0)
    network = build.build_network(config).eval()
    losses = build.build_objective(config)(network, pairs)
    target_BN = F.one_hot(pairs.labels, 10).sum(dim=1).float()
    expected = F.binary_cross_entropy_with_logits(network(pairs.images_BCHW).scores_BN, target_BN)
    torch.testing.assert_close(losses.total, expected)


def one_class_formula(objective: Objective, network: nn.Module, batch: Batch) -> Tensor:
    """The total as it was before images could show several classes."""
    output = network(batch.images_BCHW)
    target_BN = F.one_hot(batch.labels, objective.num_classes).float()
    total = objective.classification(output.scores_BN.float(), target_BN)
    assert output.pose_BJD is not None
    drawn_BCHW = network.get_submodule("decoder")(output.pose_BJD, target_BN)
    wrong = (drawn_BCHW - batch.images_BCHW).square().flatten(1).sum(dim=1).mean()
    return total + objective.reconstruction_weight * wrong


def test_images_of_one_class_have_the_loss_and_gradients_they_always_had(
    small_cell: Callable[..., Cell],
) -> None:
    config = small_cell().config
    torch.manual_seed(0)
    network, objective = build.build_network(config), build.build_objective(config)
    generator = torch.Generator().manual_seed(2)
    batch = Batch(torch.rand(5, 1, 28, 28, generator=generator), torch.tensor([3, 0, 9, 3, 1]))
    weights = list(network.parameters())
    total = objective(network, batch).total
    expected = one_class_formula(objective, network, batch)
    assert torch.equal(total, expected)
    gradients = torch.autograd.grad(total, weights)
    for one, other in zip(gradients, torch.autograd.grad(expected, weights), strict=True):
        assert torch.equal(one, other)
