"""A small CapsNet as a starting point: describe your network and its source here.

Shape letters: B batch, I children, J classes, D class pose, C H W image.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from capsweep.model.capsnet import ClassCapsules, InitialWeights
from capsweep.model.capsules import NetworkOutput, PrimaryCapsules
from capsweep.model.convolution import Convolution
from capsweep.model.routing import RoutingFactory


class MineNetwork(nn.Module):
    """A network of two convolutions, primary capsules, class capsules and an optional decoder.

    Args:
        image_shape: C, H and W of the images.
        num_classes: Number of classes.
        channels: Channels of both convolutions.
        primary: Sizes of the primary capsules: "types" is the number of capsule types, "pose" the
            length of a pose.
        class_pose: Length of the pose of a class capsule.
        vote_gain: Expected length of a class capsule's input before training, for children of
            length 1.
        routing: Builds the routing of a layer.
        decoder: Builds the decoder from num_classes, class_pose and image_shape; None for a network
            without a decoder.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        num_classes: int,
        channels: int,
        primary: Mapping[str, int],
        class_pose: int,
        vote_gain: float,
        routing: RoutingFactory,
        decoder: Callable[..., nn.Module] | None = None,
    ) -> None:
        super().__init__()
        types, pose = primary["types"], primary["pose"]
        self.features = nn.Sequential(
            Convolution(image_shape[0], channels, kernel=5, stride=2, same=True),
            nn.ReLU(),
            Convolution(channels, channels, kernel=5, stride=2, same=True),
            nn.ReLU(),
        )
        capsules = Convolution(channels, types * pose, kernel=3, stride=1, same=True)
        self.primary = PrimaryCapsules(capsules, pose)
        with torch.no_grad():  # counts the children, so that you can change the convolutions
            blank_BIP = self.primary(self.features(torch.zeros(1, *image_shape)))
        self.classes = ClassCapsules(
            num_children=blank_BIP.shape[1],
            child_pose=pose,
            num_classes=num_classes,
            class_pose=class_pose,
            routing=routing,
        )
        InitialWeights().draw_votes(self.classes.weight_IJDP, vote_gain)
        self.decoder = None
        if decoder is not None:
            sizes = {"num_classes": num_classes, "class_pose": class_pose}
            self.decoder = decoder(**sizes, image_shape=image_shape)

    def forward(self, images_BCHW: Tensor, with_trace: bool = False) -> NetworkOutput:
        """Compute lengths and poses of the class capsules.

        Args:
            images_BCHW: Images [B, C, H, W].
            with_trace: Whether to return the trace of the routing too, under the name `classes`.

        Returns:
            Lengths [B, J], poses [B, J, D] and, with `with_trace`, the traces.
        """
        routed = self.classes(self.primary(self.features(images_BCHW)), with_trace)
        traces = {"classes": routed.trace} if with_trace else None
        return NetworkOutput(routed.act_BJ, routed.pose_BJD, traces=traces)
