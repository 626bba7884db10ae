"""A plain convolutional network, with which the capsule networks are compared."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from capsweep.model.capsules import NetworkOutput
from capsweep.model.convolution import Convolution, zip_layers


class ConvNet(nn.Module):
    """A plain convolutional network: convolutions with max pooling, then fully connected layers.

    All convolutions have "same" padding and are followed by ReLU. Dropout is applied before the
    last layer.

    Args:
        image_shape: C, H, W of the images.
        num_classes: Number of classes.
        conv: Sizes of the convolutions.
            `channels`: list of the numbers of output channels.
            `kernel`: one size for all convolutions, or a list of sizes.
            `pool`: list with the pooling size after each convolution; 1 means no pooling. If `pool`
            is absent or None, the size is 1 after the last convolution and 2 after all others.
        hidden: Number of units of the hidden fully connected layer, or a list of such numbers for
            several hidden layers.
        dropout: Probability of dropout before the last layer.

    Raises:
        ValueError: If the lists of `conv` have unequal lengths, or if pooling leaves no pixels. The
            message names the configuration key.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        num_classes: int,
        conv: Mapping[str, Any],
        hidden: int | Sequence[int],
        dropout: float,
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        layers: list[nn.Module] = []
        count, kernels, pools = len(conv["channels"]), conv["kernel"], conv.get("pool")
        convolutions = {
            "channels": conv["channels"],
            "kernel": [kernels] * count if isinstance(kernels, int) else kernels,
            "pool": [2] * (count - 1) + [1] if pools is None else pools,
        }
        for outputs, kernel, pool in zip_layers("model.conv", convolutions, *convolutions):
            layers += [Convolution(channels, outputs, kernel, 1, same=True), nn.ReLU(inplace=True)]
            if pool > 1:
                layers.append(nn.MaxPool2d(pool))
                height, width = height // pool, width // pool
            channels = outputs
        if min(height, width) < 1:
            raise ValueError(
                f"model.conv.pool leaves nothing of {image_shape[1:]} pixels; use smaller sizes"
            )
        self.features = nn.Sequential(*layers)
        sizes = [channels * height * width, *([hidden] if isinstance(hidden, int) else hidden)]
        fully_connected: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            fully_connected += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.classifier = nn.Sequential(
            *fully_connected, nn.Dropout(dropout), nn.Linear(sizes[-1], num_classes)
        )

    def forward(self, images_BCHW: Tensor) -> NetworkOutput:
        """Compute the logits of the classes for images [B, C, H, W]."""
        return NetworkOutput(scores_BN=self.classifier(self.features(images_BCHW).flatten(1)))
