"""Losses against numbers worked out by hand: a sum per example, a mean over the batch."""

import math
from typing import Any

import pytest
import torch

from capsweep.config import compose
from capsweep.model.losses import (
    SpreadLoss,
    binary_cross_entropy,
    cross_entropy,
    margin_loss,
    reconstruction_loss,
    spread_loss,
)
from capsweep.training import build

LENGTHS = torch.tensor([[0.95, 0.20, 0.05], [0.50, 0.30, 0.10]])
TARGETS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
# example 0: 0              + 0.5 (0.20 - 0.1)^2 + 0 = 0.005
# example 1: (0.9 - 0.30)^2 + 0.5 (0.50 - 0.1)^2 + 0 = 0.360 + 0.080
MARGIN_LOSS = (0.005 + 0.440) / 2


@pytest.mark.parametrize(
    ("lengths", "targets", "options", "expected"),
    [
        (LENGTHS, TARGETS, {}, MARGIN_LOSS),
        # terms 0, 0.005, 0 and 0.08, 0.36, 0
        (LENGTHS, TARGETS, {"reduction": "half_mean"}, 0.5 * (0.005 + 0.08 + 0.36) / 6),
        # (0.9 - 0.8)^2 + (0.9 - 0.4)^2 + 0.25 (0.5 - 0.1)^2: every class that is present
        ([[0.8, 0.4, 0.5]], [[1.0, 1.0, 0.0]], {"down_weight": 0.25}, 0.01 + 0.25 + 0.04),
    ],
)
def test_margin_loss(lengths: Any, targets: Any, options: dict[str, Any], expected: float) -> None:
    margins = {"present": 0.9, "absent": 0.1, "down_weight": 0.5} | options
    loss = margin_loss(torch.as_tensor(lengths), torch.as_tensor(targets), **margins)
    assert loss.item() == pytest.approx(expected)


def test_reconstruction_loss_is_summed_over_pixels_and_meant_over_the_batch() -> None:
    images = torch.zeros(2, 2, 2, 2)
    target = torch.zeros(2, 2, 2, 2)
    target[0] = 0.5  # 8 values off by 1/2: 2
    target[1, 0, 0, 0] = 1.0
    images[1, 1, 1, 1] = -2.0  # 1 + 4 = 5
    assert reconstruction_loss(images, target).item() == pytest.approx((2 + 5) / 2)


def test_cross_entropy_gives_each_class_of_an_image_an_equal_part() -> None:
    logits = torch.tensor([[math.log(3), 0.0, 0.0]])  # probabilities 3/5, 1/5, 1/5
    both = torch.tensor([[1.0, 1.0, 0.0]])
    expected = -(math.log(3 / 5) + math.log(1 / 5)) / 2
    assert cross_entropy(logits, both).item() == pytest.approx(expected)


def test_cross_entropies_are_meant_over_the_batch_one_over_classes_and_one_of_each_class() -> None:
    logits = torch.tensor([[math.log(3), 0.0], [-math.log(3), math.log(3)]])
    # probabilities 3/4 and 1/4, 1/10 and 9/10: -ln of 3/4 and 9/10
    one_hot = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert cross_entropy(logits, one_hot).item() == pytest.approx((0.2876821 + 0.1053605) / 2)
    # probabilities 3/4 and 1/2, 1/4 and 3/4: -ln of 3/4, 1/2, 3/4, 1/4
    target = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    expected = (0.287682 + 0.693147 + 0.287682 + 1.386294) / 4
    assert binary_cross_entropy(logits, target).item() == pytest.approx(expected)


AUTHORS = SpreadLoss(first=0.2, last=0.99, schedule="sigmoid", reduction="mean")
LINEAR = SpreadLoss(first=0.2, last=0.9, schedule="linear", reduction="mean")


@pytest.mark.parametrize("margin", [0.2, 0.55, 0.9])
@pytest.mark.parametrize("classes", [2, 5, 10])
def test_spread_loss_is_that_of_the_paper_without_the_true_class_itself(
    margin: float, classes: int
) -> None:
    generator = torch.Generator().manual_seed(classes)
    act_BN = torch.rand(7, classes, generator=generator, dtype=torch.float64)
    label_B = torch.randint(classes, (7,), generator=generator)
    total = 0.0
    for b, t in enumerate(label_B.tolist()):
        for i in range(classes):
            if i != t:
                total += max(0.0, margin - (act_BN[b, t].item() - act_BN[b, i].item())) ** 2
    target_BN = torch.nn.functional.one_hot(label_B, classes).double()
    for reduction, expected in (("sum", total / 7), ("mean", total / 7 / classes)):
        loss = spread_loss(act_BN, target_BN, margin=margin, reduction=reduction)
        assert loss.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("loss", "margins"),
    [
        (LINEAR, {0: 0.2, 250: 0.375, 500: 0.55, 1000: 0.9, 1001: 0.9}),
        (AUTHORS, {0: 0.214, 200_000: 0.595, 400_000: 0.976, 2_000_000: 0.99}),
    ],
    ids=["with the progress of training", "with the steps, however many there are"],
)
def test_the_margin_grows(loss: SpreadLoss, margins: dict[int, float]) -> None:
    for step, margin in margins.items():
        assert loss.margin_at(step, 1000) == pytest.approx(margin, abs=5e-4)


def test_spread_loss_as_configured_is_that_of_the_paper_in_the_mean_over_classes() -> None:
    found = build.build_objective(compose.cell(["loss=spread"]).config).classification
    assert found == LINEAR
