"""The Huber loss of capsule lengths as a starting point: describe your loss and its source here.

Shape letters: B batch, N classes.
"""

from torch import Tensor
from torch.nn import functional as F


def mine_loss(length_BN: Tensor, target_BN: Tensor, *, delta: float) -> Tensor:
    """Compute the Huber loss of capsule lengths, summed over classes and averaged over the batch.

    The loss of a distance d between length and target is d^2 / 2 if d is at most `delta`, else
    delta (d - delta / 2).

    Args:
        length_BN: Lengths of the class capsules [B, N], 0..1.
        target_BN: 1 for the classes that are present, else 0, [B, N].
        delta: Distance above which the loss is linear.

    Returns:
        The loss, a scalar.
    """
    return F.huber_loss(length_BN, target_BN, reduction="none", delta=delta).sum(dim=1).mean()
