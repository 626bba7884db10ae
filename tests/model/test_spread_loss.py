"""Spread loss against explicit loops, and the margin that grows with training."""

import pytest
import torch

from capsweep.config import compose
from capsweep.model.losses import SpreadLoss, spread_loss
from capsweep.training import build

AUTHORS = SpreadLoss(first=0.2, last=0.99, schedule="sigmoid", reduction="mean")
LINEAR = SpreadLoss(first=0.2, last=0.9, schedule="linear", reduction="mean")


@pytest.mark.parametrize("margin", [0.2, 0.55, 0.9])
@pytest.mark.parametrize("classes", [2, 5, 10])
def test_it_is_that_of_the_paper_without_the_true_class_itself(margin: float, classes: int) -> None:
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


def test_it_is_zero_when_every_other_class_is_a_margin_below() -> None:
    act_BN, target_BN = torch.tensor([[0.95, 0.05, 0.0]]), torch.tensor([[1.0, 0.0, 0.0]])
    assert spread_loss(act_BN, target_BN, margin=0.9, reduction="sum").item() == 0


def test_of_several_classes_each_shall_be_above_those_that_are_absent() -> None:
    act_BN, target_BN = torch.tensor([[0.9, 0.4, 0.3]]), torch.tensor([[1.0, 1.0, 0.0]])
    loss = spread_loss(act_BN, target_BN, margin=0.5, reduction="sum")
    assert loss.item() == pytest.approx((0.5 - 0.1) ** 2)  # 0.9 is far enough above 0.3


def test_an_unknown_reduction_or_schedule_is_refused_by_name() -> None:
    ones = torch.ones(1, 2)
    with pytest.raises(ValueError, match=r"loss\.classification\.reduction must be sum or mean"):
        spread_loss(ones, ones, margin=0.2, reduction="half_mean")
    with pytest.raises(ValueError, match=r"loss\.classification\.schedule must be linear, sigmoid"):
        SpreadLoss(0.2, 0.9, schedule="steep", reduction="mean")


@pytest.mark.parametrize(
    ("step", "margin"), [(0, 0.2), (250, 0.375), (500, 0.55), (1000, 0.9), (1001, 0.9)]
)
def test_a_linear_margin_grows_with_the_progress_of_training(step: int, margin: float) -> None:
    assert LINEAR.margin_at(step, 1000) == pytest.approx(margin)


@pytest.mark.parametrize(
    ("step", "margin"), [(0, 0.214), (200_000, 0.595), (400_000, 0.976), (2_000_000, 0.99)]
)
@pytest.mark.parametrize("steps", [100, 2_000_000])
def test_the_authors_margin_grows_with_the_steps_however_many_there_are(
    step: int, steps: int, margin: float
) -> None:
    assert AUTHORS.margin_at(step, steps) == pytest.approx(margin, abs=5e-4)


def test_the_loss_of_a_step_has_its_margin_and_that_of_an_evaluation_the_last() -> None:
    act_BN, target_BN = torch.tensor([[0.6, 0.5]]), torch.tensor([[1.0, 0.0]])
    for step, margin in ((0, 0.2), (5, 0.55), (10, 0.9)):
        at_step = LINEAR.loss_at(step, 10)(act_BN, target_BN)
        assert at_step.item() == pytest.approx((margin - 0.1) ** 2 / 2)
    assert LINEAR(act_BN, target_BN).item() == pytest.approx((0.9 - 0.1) ** 2 / 2)


def test_as_configured_it_is_that_of_the_paper_in_the_mean_over_classes() -> None:
    found = build.objective(compose.cell(["loss=spread"]).config).classification
    assert found == LINEAR
