"""CapsNet: convolution, primary capsules, class capsules, decoder.

"Dynamic Routing Between Capsules", figures 1 and 2; every size from configuration.
Shape letters: B batch, J classes, D class pose, C H W image.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from capsweep.model.capsules import ClassCapsules, PrimaryCapsules, initialise
from capsweep.model.output import NetworkOutput
from capsweep.model.routing.base import RoutingFactory


class DecoderFactory(Protocol):
    """Makes the decoder: the partial that `model.decoder` instantiates to."""

    def __call__(
        self, *, num_classes: int, class_pose: int, image_shape: Sequence[int]
    ) -> nn.Module: ...


class CapsNet(nn.Module):
    """Images to class capsules, and back through the decoder when there is one.

    image_shape: C, H, W. conv: channels, kernel, stride. primary: types, pose, kernel, stride.
    Raises ValueError, naming the key, when the kernels do not fit into the image.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        num_classes: int,
        conv: Mapping[str, int],
        primary: Mapping[str, int],
        class_pose: int,
        vote_gain: float,
        routing: RoutingFactory,
        decoder: DecoderFactory | None = None,
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.conv = nn.Conv2d(channels, conv["channels"], conv["kernel"], conv["stride"])
        initialise(self.conv, "relu")
        self.primary = PrimaryCapsules(conv["channels"], **primary)
        places = _places(height, conv, primary) * _places(width, conv, primary)
        self.classes = ClassCapsules(
            num_children=primary["types"] * places,
            child_pose=primary["pose"],
            num_classes=num_classes,
            class_pose=class_pose,
            vote_gain=vote_gain,
            routing=routing,
        )
        self.decoder = decoder and decoder(
            num_classes=num_classes, class_pose=class_pose, image_shape=image_shape
        )

    def forward(self, images_BCHW: Tensor) -> NetworkOutput:
        """Class capsule lengths and poses."""
        features_BCHW = torch.relu(self.conv(images_BCHW))
        routed = self.classes(self.primary(features_BCHW))
        return NetworkOutput(scores_BN=routed.act_BJ, pose_BJD=routed.pose_BJD)


def _places(size: int, conv: Mapping[str, int], primary: Mapping[str, int]) -> int:
    """Primary capsule places along one image axis."""
    after_conv = (size - conv["kernel"]) // conv["stride"] + 1
    places = (after_conv - primary["kernel"]) // primary["stride"] + 1
    if places < 1:
        raise ValueError(
            f"model.conv.kernel and model.primary.kernel do not fit into {size} pixels; "
            "make them or their strides smaller"
        )
    return places
