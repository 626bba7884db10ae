"""The objective: classification plus weighted reconstruction of one batch.

Shape letters: B batch, N classes, L classes shown in one image, C H W image.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from capsweep.data.batches import Batch
from capsweep.errors import DataError
from capsweep.model.losses import reconstruction_loss

Classification = Callable[[Tensor, Tensor], Tensor]


class Progress(NamedTuple):
    """Where training is: an optimiser's step, of how many."""

    step: int
    steps: int


class Losses(NamedTuple):
    """Scalars of one batch, the scores_BN they were computed from, and what the decoder drew.

    reconstruction is the sum of squared pixel errors per image, over its L digits, before its
    weight.
    """

    total: Tensor
    reconstruction: Tensor | None
    scores_BN: Tensor
    drawn_BLCHW: Tensor | None = None


class Objective:
    """total = classification + weight * reconstruction.

    on_logits: the classification loss takes logits; scores are those of a network that gives none.

    The decoder sees the capsule of the true class, at training and at test, as in section 4.1 of
    "Dynamic Routing Between Capsules" and in its authors' code; where an image shows several, it
    draws one after the other (section 6.2), each from its own capsule alone, and the errors add up.
    """

    def __init__(
        self,
        classification: Classification,
        reconstruction_weight: float,
        num_classes: int,
        on_logits: bool = False,
    ) -> None:
        self.classification, self.on_logits = classification, on_logits
        self.reconstruction_weight = reconstruction_weight
        self.num_classes = num_classes

    def __call__(
        self, network: nn.Module, batch: Batch, progress: Progress | None = None
    ) -> Losses:
        """The losses of `network` on `batch`, as they are when training has got so far; without
        progress, as at its end.
        """
        output = network(batch.images_BCHW)
        scores_BN = output.scores_BN.float()
        labels_BL = batch.labels.reshape(len(batch.labels), -1)
        target_BN = torch.zeros_like(scores_BN).scatter(1, labels_BL, 1.0)
        judged_BN = scores_BN
        if self.on_logits and output.logits_BN is not None:
            judged_BN = output.logits_BN.float()
        classification = self._loss_at(progress)(judged_BN, target_BN)
        if self.reconstruction_weight == 0:
            return Losses(classification, None, scores_BN)
        drawn_BLCHW = self._draw_digits(
            network.get_submodule("decoder"), output.pose_BJD, labels_BL
        )
        true_BLCHW = batch.targets_BLCHW
        if true_BLCHW is None:
            if labels_BL.shape[1] > 1:
                raise DataError(
                    "loss.reconstruction.weight: images of several classes have no one picture of "
                    "each to be drawn; read the digits alone, or set it to 0"
                )
            true_BLCHW = batch.images_BCHW[:, None]
        reconstruction = reconstruction_loss(drawn_BLCHW.float(), true_BLCHW)
        total = classification + self.reconstruction_weight * reconstruction
        return Losses(total, reconstruction, scores_BN, drawn_BLCHW)

    def _loss_at(self, progress: Progress | None) -> Classification:
        loss_at: Any = getattr(self.classification, "loss_at", None)  # where it changes in training
        if progress is None or loss_at is None:
            return self.classification
        return loss_at(progress.step, progress.steps)

    def _draw_digits(self, decoder: nn.Module, pose_BJD: Tensor, labels_BL: Tensor) -> Tensor:
        """All digits of all images in one pass of the one decoder."""
        only_BLN = torch.zeros(*labels_BL.shape, self.num_classes, device=labels_BL.device)
        only_BLN.scatter_(2, labels_BL[..., None], 1.0)
        digits = labels_BL.shape[1]
        drawn = decoder(pose_BJD.repeat_interleave(digits, dim=0), only_BLN.flatten(0, 1))
        return drawn.unflatten(0, (-1, digits))
