"""Losses against numbers worked out by hand: a sum per example, a mean over the batch."""

import math

import pytest
import torch

from capsweep.config import compose
from capsweep.model.losses import (
    binary_cross_entropy,
    cross_entropy,
    margin_loss,
    reconstruction_loss,
)
from capsweep.training import build

LENGTHS = torch.tensor([[0.95, 0.20, 0.05], [0.50, 0.30, 0.10]])
TARGETS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
# example 0: 0              + 0.5 (0.20 - 0.1)^2 + 0 = 0.005
# example 1: (0.9 - 0.30)^2 + 0.5 (0.50 - 0.1)^2 + 0 = 0.360 + 0.080
MARGIN_LOSS = (0.005 + 0.440) / 2


def test_margin_loss_is_summed_over_classes_and_meant_over_the_batch() -> None:
    loss = margin_loss(LENGTHS, TARGETS, present=0.9, absent=0.1, down_weight=0.5)
    assert loss.item() == pytest.approx(MARGIN_LOSS)


def test_margin_loss_as_configured_has_the_numbers_of_the_paper() -> None:
    classification = build.objective(compose.cell(["loss=margin"]).config).classification
    assert classification(LENGTHS, TARGETS).item() == pytest.approx(MARGIN_LOSS)


def test_half_mean_is_half_the_mean_over_classes_and_batch() -> None:
    loss = margin_loss(
        LENGTHS, TARGETS, present=0.9, absent=0.1, down_weight=0.5, reduction="half_mean"
    )
    # terms 0, 0.005, 0 and 0.08, 0.36, 0
    assert loss.item() == pytest.approx(0.5 * (0.005 + 0.08 + 0.36) / 6)


@pytest.mark.parametrize("classes", [5, 10])
def test_half_mean_is_the_sum_times_one_half_of_a_class(classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    lengths = torch.rand(7, classes, generator=generator)
    targets = (torch.rand(7, classes, generator=generator) < 0.3).float()
    summed, halved = (
        margin_loss(lengths, targets, present=0.9, absent=0.1, down_weight=0.5, reduction=reduction)
        for reduction in ("sum", "half_mean")
    )
    assert (halved / summed).item() == pytest.approx(0.5 / classes)


def test_with_the_authors_margin_loss_reconstruction_weighs_twenty_times_more() -> None:
    configs = [compose.cell([f"recipe={recipe}"]).config for recipe in ("paper", "authors")]
    paper, authors = (
        build.objective(config).classification(LENGTHS.repeat(1, 4)[:, :10], torch.eye(10)[[0, 1]])
        for config in configs
    )
    assert configs[0]["loss"]["reconstruction"] == configs[1]["loss"]["reconstruction"]
    assert (paper / authors).item() == pytest.approx(20)


@pytest.mark.parametrize("reduction", ["mean", "", "none"])
def test_an_unknown_reduction_is_refused_by_name(reduction: str) -> None:
    with pytest.raises(
        ValueError,
        match=rf"loss\.classification\.reduction must be sum or half_mean, got {reduction}",
    ):
        margin_loss(LENGTHS, TARGETS, present=0.9, absent=0.1, down_weight=0.5, reduction=reduction)


def test_margin_loss_asks_for_every_class_that_is_present() -> None:
    both = torch.tensor([[1.0, 1.0, 0.0]])
    lengths = torch.tensor([[0.8, 0.4, 0.5]])
    loss = margin_loss(lengths, both, present=0.9, absent=0.1, down_weight=0.25)
    # (0.9 - 0.8)^2 + (0.9 - 0.4)^2 + 0.25 (0.5 - 0.1)^2
    assert loss.item() == pytest.approx(0.01 + 0.25 + 0.04)


def test_margin_loss_is_zero_inside_the_margins() -> None:
    lengths = torch.tensor([[0.9, 0.1, 0.0]])
    loss = margin_loss(lengths, TARGETS[:1], present=0.9, absent=0.1, down_weight=0.5)
    assert loss.item() == 0


def test_reconstruction_loss_is_summed_over_pixels_and_meant_over_the_batch() -> None:
    images = torch.zeros(2, 2, 2, 2)
    target = torch.zeros(2, 2, 2, 2)
    target[0] = 0.5  # 8 values off by 1/2: 2
    target[1, 0, 0, 0] = 1.0
    images[1, 1, 1, 1] = -2.0  # 1 + 4 = 5
    assert reconstruction_loss(images, target).item() == pytest.approx((2 + 5) / 2)


def test_cross_entropy_is_meant_over_the_batch() -> None:
    logits = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]])
    target = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    # -ln(3/4) and -ln(1/2)
    assert cross_entropy(logits, target).item() == pytest.approx((0.287682 + 0.693147) / 2)


def test_cross_entropy_takes_probabilities_as_target() -> None:
    logits = torch.tensor([[0.0, math.log(3)]])
    # -(ln(1/4) + ln(3/4)) / 2
    assert cross_entropy(logits, torch.tensor([[0.5, 0.5]])).item() == pytest.approx(0.836988)


def test_binary_cross_entropy_decides_on_each_class_alone() -> None:
    logits = torch.tensor([[math.log(3), 0.0], [-math.log(3), math.log(3)]])
    target = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    # probabilities 3/4 and 1/2, 1/4 and 3/4: -ln of 3/4, 1/2, 3/4, 1/4
    expected = (0.287682 + 0.693147 + 0.287682 + 1.386294) / 4
    assert binary_cross_entropy(logits, target).item() == pytest.approx(expected)


def test_binary_cross_entropy_as_configured_wants_both_digits() -> None:
    config = compose.cell(["model=cnn_small", "loss=binary_cross_entropy"]).config
    classification = build.objective(config).classification
    both = torch.tensor([[1.0, 1.0, 0.0]])
    right, half = torch.tensor([[9.0, 9.0, -9.0]]), torch.tensor([[9.0, -9.0, -9.0]])
    assert classification(right, both).item() < 0.001
    assert classification(half, both).item() == pytest.approx(9 / 3, rel=1e-3)
