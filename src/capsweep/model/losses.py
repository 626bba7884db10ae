"""Losses as pure functions. Each is a sum over one example's terms and a mean over the batch.

Shape letters: B batch, N classes, C H W image.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def margin_loss(
    length_BN: Tensor, target_BN: Tensor, *, present: float, absent: float, down_weight: float
) -> Tensor:
    """Margin loss of capsule lengths ("Dynamic Routing Between Capsules", equation 4).

    target_BN is 1 for the classes present, else 0; present, absent, down_weight are m+, m-, lambda.
    """
    too_short = torch.relu(present - length_BN).square()
    too_long = torch.relu(length_BN - absent).square()
    loss_BN = target_BN * too_short + down_weight * (1 - target_BN) * too_long
    return loss_BN.sum(dim=1).mean()


def cross_entropy(logit_BN: Tensor, target_BN: Tensor) -> Tensor:
    """Softmax cross-entropy with probabilities (or a one-hot vector) as target."""
    return F.cross_entropy(logit_BN, target_BN)


def reconstruction_loss(images_BCHW: Tensor, target_BCHW: Tensor) -> Tensor:
    """Sum of squared pixel errors, mean over the batch (section 4.1, without its weight)."""
    return (images_BCHW - target_BCHW).square().flatten(1).sum(dim=1).mean()
