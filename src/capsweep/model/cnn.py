"""The control of capsule networks: a plain convolutional network."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from capsweep.model.output import NetworkOutput


class ConvNet(nn.Module):
    """Convolutions (same padding, ReLU), each but the last followed by 2x2 max pooling; a hidden
    layer; dropout; logits.

    image_shape: C, H, W. conv: channels (a list), kernel.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        num_classes: int,
        conv: Mapping[str, Any],
        hidden: int,
        dropout: float,
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        layers: list[nn.Module] = []
        for outputs in conv["channels"]:
            if layers:
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
            layers += [nn.Conv2d(channels, outputs, conv["kernel"], padding="same"), nn.ReLU()]
            channels = outputs
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(channels * height * width, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, images_BCHW: Tensor) -> NetworkOutput:
        """Logits."""
        return NetworkOutput(scores_BN=self.classifier(self.features(images_BCHW).flatten(1)))
