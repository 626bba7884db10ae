"""Losses as pure functions. Each is a sum over one example's terms and a mean over the batch. A new
one is a file of its own: all cells reach this one, and become stale when it changes.

Shape letters: B batch, N classes, C H W image.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

FACTORS = {"mean": 1.0, "half_mean": 0.5}  # of the mean over classes


def margin_loss(
    length_BN: Tensor,
    target_BN: Tensor,
    *,
    present: float,
    absent: float,
    down_weight: float,
    reduction: str = "sum",
) -> Tensor:
    """Margin loss of capsule lengths ("Dynamic Routing Between Capsules", equation 4).

    target_BN is 1 for the classes present, else 0; present, absent, down_weight are m+, m-, lambda.
    reduction over classes: sum, as in the paper; half_mean, as in its authors' code, half their
    mean.
    """
    too_short = torch.relu(present - length_BN).square()
    too_long = torch.relu(length_BN - absent).square()
    loss_BN = target_BN * too_short + down_weight * (1 - target_BN) * too_long
    if reduction == "sum":
        return loss_BN.sum(dim=1).mean()
    return FACTORS[reduction] * loss_BN.mean()


def spread_loss(
    act_BN: Tensor, target_BN: Tensor, *, margin: float | Tensor, reduction: str
) -> Tensor:
    """Spread loss of capsule activations ("Matrix capsules with EM routing", equation 3): every
    class that is absent shall be `margin` below every class that is present.

    reduction over classes: sum, as in the paper; mean, over all N, as in its authors' code.
    """
    # [B, present, absent]
    short_BNN = torch.relu(margin - (act_BN[:, :, None] - act_BN[:, None, :])).square()
    pair_BNN = target_BN[:, :, None] * (1 - target_BN[:, None, :])
    loss_B = (pair_BNN * short_BNN).sum(dim=(1, 2))
    if reduction == "sum":
        return loss_B.mean()
    return FACTORS[reduction] * loss_B.mean() / act_BN.shape[1]


@dataclass(frozen=True)
class SpreadLoss:
    """Spread loss whose margin grows from `first` to `last` in training; evaluation uses `last`.

    schedule. linear: in the progress of training; sigmoid: first + (last - first) sigmoid(min(10,
    step / 50,000 - 4)), however long training is: the authors' code, whose last is 0.99.
    """

    first: float
    last: float
    schedule: str
    reduction: str

    def __call__(
        self, act_BN: Tensor, target_BN: Tensor, margin: float | Tensor | None = None
    ) -> Tensor:
        """Compute the loss with the margin of a step; None: with that of the end of training."""
        margin = self.last if margin is None else margin
        return spread_loss(act_BN, target_BN, margin=margin, reduction=self.reduction)

    def margin_at(self, step: int, steps: int) -> float:
        """The margin at an optimiser's step of so many."""
        grown = min(step / steps, 1.0)
        if self.schedule == "sigmoid":
            grown = 1 / (1 + math.exp(-min(10.0, step / 50_000 - 4)))
        return self.first + (self.last - self.first) * grown


def cross_entropy(logit_BN: Tensor, target_BN: Tensor) -> Tensor:
    """Softmax cross-entropy; where an image shows several classes, each has an equal part of the
    target.
    """
    return F.cross_entropy(logit_BN, target_BN / target_BN.sum(dim=1, keepdim=True))


def binary_cross_entropy(logit_BN: Tensor, target_BN: Tensor) -> Tensor:
    """Sigmoid cross-entropy, a decision per class, for images of several classes (section 6.2)."""
    return F.binary_cross_entropy_with_logits(logit_BN, target_BN)


def reconstruction_loss(images_BCHW: Tensor, target_BCHW: Tensor) -> Tensor:
    """Sum of squared pixel errors, mean over the batch (section 4.1, without its weight)."""
    return (images_BCHW - target_BCHW).square().flatten(1).sum(dim=1).mean()
