"""Losses as pure functions. Each loss is averaged over the batch.

Write a new loss in a new file. The results of all cells depend on the code in this file, so a
change here makes all results stale.

Shape letters: B batch, N classes, C H W image.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

FACTORS = {"mean": 1.0, "half_mean": 0.5}  # by reduction: factor of the mean over classes


def margin_loss(
    length_BN: Tensor,
    target_BN: Tensor,
    *,
    present: float,
    absent: float,
    down_weight: float,
    reduction: str = "sum",
) -> Tensor:
    """Compute the margin loss of capsule lengths.

    Source: Sabour, Frosst, Hinton 2017, "Dynamic Routing Between Capsules", equation 4.

    Args:
        length_BN: Lengths of the class capsules.
        target_BN: 1 for each class in the image, else 0.
        present: Length above which a class in the image costs nothing, m+.
        absent: Length below which a class not in the image costs nothing, m-.
        down_weight: Weight of the classes not in the image, lambda.
        reduction: How the terms of the classes are combined. "sum": their sum, as in the paper.
            "mean": their mean. "half_mean": half of their mean, as in the authors' code.

    Returns:
        The loss, averaged over the batch; a scalar.
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
    """Compute the spread loss of class activations.

    The activation of each class in the image must exceed, by a margin m, the activation of each
    class that is not in the image. If the difference d of two such activations is smaller than m,
    the pair of classes costs (m - d)^2.

    Source: Hinton, Sabour, Frosst 2018, "Matrix capsules with EM routing", equation 3.

    Args:
        act_BN: Activations of the class capsules.
        target_BN: 1 for each class in the image, else 0.
        margin: Required difference of activations, m.
        reduction: How the terms of all pairs of classes (one in the image, one not) are combined.
            "sum": their sum, as in the paper. "mean": their sum divided by N, as in the authors'
            code. "half_mean": half of "mean".

    Returns:
        The loss, averaged over the batch; a scalar.
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
    """A spread loss whose margin grows during training from `first` to `last`.

    Evaluation uses the margin `last`.

    Attributes:
        first: Margin from which the schedule starts.
        last: Margin to which the schedule grows. It is 0.99 in the authors' code.
        schedule: How the margin grows.
            "linear": in proportion to the progress of training.
            "sigmoid": at optimiser step `step` the margin is
            first + (last - first) sigmoid(min(10, step / 50,000 - 4)), as in the authors' code.
            This margin does not depend on the length of training.
        reduction: How the terms of all pairs of classes (one in the image, one not) are combined.
            "sum": their sum. "mean": their sum divided by N. "half_mean": half of "mean".
    """

    first: float
    last: float
    schedule: str
    reduction: str

    def __call__(
        self, act_BN: Tensor, target_BN: Tensor, margin: float | Tensor | None = None
    ) -> Tensor:
        """Compute the spread loss with the given margin; None means the margin `last`."""
        margin = self.last if margin is None else margin
        return spread_loss(act_BN, target_BN, margin=margin, reduction=self.reduction)

    def margin_at(self, step: int, steps: int) -> float:
        """Return the margin at optimiser step `step` of a training of `steps` optimiser steps."""
        grown = min(step / steps, 1.0)
        if self.schedule == "sigmoid":
            grown = 1 / (1 + math.exp(-min(10.0, step / 50_000 - 4)))
        return self.first + (self.last - self.first) * grown


def cross_entropy(logit_BN: Tensor, target_BN: Tensor) -> Tensor:
    """Compute the softmax cross-entropy of logits, averaged over the batch.

    If an image shows several classes, the target gives each of them the same probability.

    Args:
        logit_BN: Logits of the classes.
        target_BN: 1 for each class in the image, else 0.
    """
    return F.cross_entropy(logit_BN, target_BN / target_BN.sum(dim=1, keepdim=True))


def binary_cross_entropy(logit_BN: Tensor, target_BN: Tensor) -> Tensor:
    """Compute the sigmoid cross-entropy of logits, with a separate decision for each class.

    Source: "Dynamic Routing Between Capsules", section 6.2. The baseline in that section uses this
    loss for images of several classes.

    Args:
        logit_BN: Logits of the classes.
        target_BN: 1 for each class in the image, else 0.

    Returns:
        The mean over classes and batch; a scalar.
    """
    return F.binary_cross_entropy_with_logits(logit_BN, target_BN)


def reconstruction_loss(images_BCHW: Tensor, target_BCHW: Tensor) -> Tensor:
    """Compute the sum of squared pixel errors per image, averaged over the batch.

    Source: "Dynamic Routing Between Capsules", section 4.1. The caller multiplies the result by the
    weight of this loss.

    Args:
        images_BCHW: Reconstructed images.
        target_BCHW: Images to reconstruct.
    """
    return (images_BCHW - target_BCHW).square().flatten(1).sum(dim=1).mean()
