"""What is measured of a split, accumulated on the device in float64.

Shape letters: B batch, N classes, L classes shown in one image, C H W image.
"""

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from capsweep.data.presented import Batch
from capsweep.training.objective import Losses

# What eight bits round to zero is zero: a sigmoid never is.
SMALLEST_INTENSITY = 0.5 / 255


def _mean() -> MeanMetric:
    # nan_strategy: torchmetrics' own check would read from the device at every step.
    mean = MeanMetric(nan_strategy="disable")
    mean.set_dtype(torch.float64)
    return mean


class SplitMetrics(nn.Module):
    """Means over the examples of a split.

    loss; error, a fraction: an image is right when its L most active classes are exactly those it
    shows (section 6.2); reconstruction, as in `Losses`. Of images of several classes also
    at_least_one, the fraction with one of them among the most active, and, where there is a
    decoder, segmentation: see `overlap`.
    """

    def __init__(self, reconstructs: bool) -> None:
        super().__init__()
        self.loss, self.error = _mean(), _mean()
        self.reconstruction = _mean() if reconstructs else None
        self.at_least_one, self.segmentation = _mean(), _mean()

    def update(self, losses: Losses, batch: Batch) -> None:
        """Add one batch."""
        count = len(batch.labels)
        # Once per image: torchmetrics 1.9 ignores a weight where it does not check for NaN.
        self.loss.update(losses.total.detach().double().expand(count))
        if self.reconstruction is not None and losses.reconstruction is not None:
            self.reconstruction.update(losses.reconstruction.detach().double().expand(count))
        if batch.labels.dim() == 1:
            self.error.update((losses.scores_BN.argmax(dim=1) != batch.labels).double())
            return
        found_BL = is_found(losses.scores_BN.detach(), batch.labels)
        self.error.update((~found_BL.all(dim=1)).double())
        self.at_least_one.update(found_BL.any(dim=1).double())
        if losses.drawn_BLCHW is not None and batch.targets_BLCHW is not None:
            overlap_BL = overlap(losses.drawn_BLCHW.detach(), batch.targets_BLCHW)
            self.segmentation.update((overlap_BL * found_BL).double())

    def compute(self, split: str) -> dict[str, float]:
        """`split/loss` and so on, of what was measured; then starts anew."""
        means = {
            "loss": self.loss,
            "error": self.error,
            "reconstruction": self.reconstruction,
            "at_least_one": self.at_least_one,
            "segmentation": self.segmentation,
        }
        values = {}
        for name, mean in means.items():
            if mean is not None and mean.update_called:
                values[f"{split}/{name}"] = float(mean.compute())
                mean.reset()
        return values


def is_found(scores_BN: Tensor, labels_BL: Tensor) -> Tensor:
    """[B, L]: whether each class shown is among the L most active."""
    active_BL = scores_BN.topk(labels_BL.shape[1], dim=1).indices
    return (labels_BL[:, :, None] == active_BL[:, None, :]).any(dim=2)


def overlap(drawn_BLCHW: Tensor, digit_BLCHW: Tensor) -> Tensor:
    """[B, L]: intersection over union of the pixels of non-zero intensity, drawn and true.

    Section 6.2 assigns to a digit every pixel of its reconstruction that is not zero. A digit whose
    class is not among the most active has no reconstruction: the caller counts it as 0.
    """
    drawn, true = drawn_BLCHW >= SMALLEST_INTENSITY, digit_BLCHW > 0
    both_BL = (drawn & true).flatten(2).sum(dim=2)
    either_BL = (drawn | true).flatten(2).sum(dim=2)
    return both_BL / either_BL.clamp(min=1)
