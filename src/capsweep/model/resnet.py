"""Residual networks for small images: as a classifier, and as the stem of a capsule network.

Source: He, Zhang, Ren, Sun 2015, "Deep Residual Learning for Image Recognition", section 4.2. The
blocks are our own, not torchvision's, because torchvision's residual networks are for large images:
their first layers halve the image twice.

Shape letters: B batch, C H W image or feature maps.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsweep.model.capsules import NetworkOutput

STAGES = 3  # each stage after the first has half the side and twice the channels


class ResidualBlock(nn.Module):
    """A block of two convolutions with batch normalisation, to whose result its input is added.

    If the block has a stride or more outputs than inputs, the shortcut takes every `stride`-th
    pixel and adds channels of zeros. So it has no parameters (option A of the paper).

    Args:
        channels: Number of input channels.
        outputs: Number of output channels.
        stride: Stride of the first convolution.
    """

    def __init__(self, channels: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _convolve(channels, outputs, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = _convolve(outputs, outputs), nn.BatchNorm2d(outputs)
        self.stride, self.added = stride, outputs - channels

    def forward(self, features_BCHW: Tensor) -> Tensor:
        """Compute the feature maps of a batch."""
        shortcut_BCHW = features_BCHW[:, :, :: self.stride, :: self.stride]
        shortcut_BCHW = F.pad(shortcut_BCHW, (0, 0, 0, 0, 0, self.added))
        hidden_BCHW = torch.relu(self.norm1(self.conv1(features_BCHW)))
        return torch.relu(shortcut_BCHW + self.norm2(self.conv2(hidden_BCHW)))


class ResNetStem(nn.Module):
    """A residual network without its last layer: 6 `blocks` + 1 convolutions.

    Args:
        channels: Number of channels of the images.
        width: Number of channels of the first stage; each further stage has twice as many.
        blocks: Number of residual blocks of each of the three stages. 3 gives ResNet-20.

    Attributes:
        outputs: Number of channels of the features, 4 `width`.
    """

    def __init__(self, channels: int, *, width: int, blocks: int) -> None:
        super().__init__()
        self.conv, self.norm = _convolve(channels, width), nn.BatchNorm2d(width)
        layers: list[nn.Module] = []
        inputs = width
        for stage in range(STAGES):
            self.outputs = width * 2**stage
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                layers.append(ResidualBlock(inputs, self.outputs, stride))
                inputs = self.outputs
        self.blocks = nn.Sequential(*layers)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Compute the features of a batch of images. Their sides are a quarter, rounded up."""
        return self.blocks(torch.relu(self.norm(self.conv(images_BCHW))))

    def count_positions(self, size: int, key: str = "stem") -> int:
        """Return the number of positions along an image axis of `size` pixels.

        Every size fits, so no error names `key`.
        """
        return -(-size // 2 ** (STAGES - 1))


class ResNet(nn.Module):
    """A residual network that classifies the mean of its features over all positions.

    Args:
        image_shape: C, H, W of the images.
        num_classes: Number of classes.
        stem: Factory of the layers before the mean, called with the number of image channels.
    """

    def __init__(
        self, image_shape: Sequence[int], num_classes: int, stem: Callable[[int], ResNetStem]
    ) -> None:
        super().__init__()
        self.stem = stem(image_shape[0])
        self.classifier = nn.Linear(self.stem.outputs, num_classes)

    def forward(self, images_BCHW: Tensor) -> NetworkOutput:
        """Compute the logits of the classes for a batch of images."""
        features_BC = self.stem(images_BCHW).mean(dim=(2, 3))
        return NetworkOutput(scores_BN=self.classifier(features_BC))


def _convolve(channels: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Make a convolution with a kernel of 3x3 and no bias, with the paper's initial weights."""
    conv = nn.Conv2d(channels, outputs, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    return conv
