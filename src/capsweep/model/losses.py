"""Losses as pure functions. Each is a sum over one example's terms and a mean over the batch.

Shape letters: B batch, N classes, C H W image.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


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
    mean. Raises ValueError for another.
    """
    too_short = torch.relu(present - length_BN).square()
    too_long = torch.relu(length_BN - absent).square()
    loss_BN = target_BN * too_short + down_weight * (1 - target_BN) * too_long
    if reduction == "sum":
        return loss_BN.sum(dim=1).mean()
    if reduction == "half_mean":
        return 0.5 * loss_BN.mean()
    raise ValueError(f"loss.classification.reduction must be sum or half_mean, got {reduction}")


def cross_entropy(logit_BN: Tensor, target_BN: Tensor) -> Tensor:
    """Softmax cross-entropy with probabilities (or a one-hot vector) as target."""
    return F.cross_entropy(logit_BN, target_BN)


def binary_cross_entropy(logit_BN: Tensor, target_BN: Tensor) -> Tensor:
    """Sigmoid cross-entropy, a decision per class, for images of several classes (section 6.2)."""
    return F.binary_cross_entropy_with_logits(logit_BN, target_BN)


def reconstruction_loss(images_BCHW: Tensor, target_BCHW: Tensor) -> Tensor:
    """Sum of squared pixel errors, mean over the batch (section 4.1, without its weight)."""
    return (images_BCHW - target_BCHW).square().flatten(1).sum(dim=1).mean()
