"""The decoder: an image from a class pose ("Dynamic Routing Between Capsules", figure 2)."""

import itertools
import math
from collections.abc import Sequence

from torch import Tensor, nn


class Decoder(nn.Module):
    """Fully connected layers, ReLU between them and a sigmoid at the end.

    Shape letters: B batch, J classes, D pose, C H W image.
    """

    def __init__(
        self,
        hidden: Sequence[int],
        *,
        num_classes: int,
        class_pose: int,
        image_shape: Sequence[int],
    ) -> None:
        super().__init__()
        sizes = [num_classes * class_pose, *hidden]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(
            *layers, nn.Linear(sizes[-1], math.prod(image_shape)), nn.Sigmoid()
        )
        self.image_shape = tuple(image_shape)

    def forward(self, pose_BJD: Tensor, mask_BJ: Tensor) -> Tensor:
        """Images [B, C, H, W] in 0..1 of the poses whose mask is 1; the others count as 0."""
        masked = pose_BJD * mask_BJ[..., None]
        return self.layers(masked.flatten(1)).unflatten(1, self.image_shape)
