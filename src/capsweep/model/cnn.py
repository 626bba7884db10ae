"""The control of capsule networks: a plain convolutional network."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from capsweep.model.capsules import NetworkOutput
from capsweep.model.convolution import Convolution, zip_layers


class ConvNet(nn.Module):
    """Convolutions (same padding, ReLU) with max pooling; hidden layers; dropout; logits.

    image_shape: C, H, W. conv: channels (a list); kernel, one or a list; pool, a size per
    convolution, 1 for none, or None: 2x2 after each but the last. hidden: one or a list. dropout:
    before the last layer.
    Raises ValueError, naming the key, for lists of unequal length, or images pooled to nothing.
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
            raise ValueError(f"model.conv.pool leaves nothing of an image of {image_shape[1:]}")
        self.features = nn.Sequential(*layers)
        sizes = [channels * height * width, *([hidden] if isinstance(hidden, int) else hidden)]
        fully_connected: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            fully_connected += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.classifier = nn.Sequential(
            *fully_connected, nn.Dropout(dropout), nn.Linear(sizes[-1], num_classes)
        )

    def forward(self, images_BCHW: Tensor) -> NetworkOutput:
        """Logits."""
        return NetworkOutput(scores_BN=self.classifier(self.features(images_BCHW).flatten(1)))
