"""The objective: classification plus weighted reconstruction of one batch.

Shape letters: B batch, N classes, C H W image.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from capsweep.data.loader import Batch
from capsweep.model.losses import reconstruction_loss


class Losses(NamedTuple):
    """Scalars of one batch, and the scores_BN they were computed from.

    reconstruction is the sum of squared pixel errors per image, before its weight.
    """

    total: Tensor
    reconstruction: Tensor | None
    scores_BN: Tensor


class Objective:
    """total = classification + weight * reconstruction.

    The decoder sees the capsule of the true class, at training and at test, as in section 4.1 of
    "Dynamic Routing Between Capsules" and in its authors' code.
    """

    def __init__(
        self, classification: Callable[..., Tensor], reconstruction_weight: float, num_classes: int
    ) -> None:
        self.classification = classification
        self.reconstruction_weight = reconstruction_weight
        self.num_classes = num_classes

    def __call__(self, network: nn.Module, batch: Batch) -> Losses:
        """The losses of `network` on `batch`."""
        output = network(batch.images_BCHW)
        scores_BN = output.scores_BN.float()
        target_BN = F.one_hot(batch.labels_B, self.num_classes).to(scores_BN.dtype)
        classification = self.classification(scores_BN, target_BN)
        if self.reconstruction_weight == 0:
            return Losses(classification, None, scores_BN)
        images_BCHW = network.get_submodule("decoder")(output.pose_BJD, target_BN)
        reconstruction = reconstruction_loss(images_BCHW.float(), batch.images_BCHW)
        total = classification + self.reconstruction_weight * reconstruction
        return Losses(total, reconstruction, scores_BN)
