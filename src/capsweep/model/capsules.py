"""Capsule layers: from feature maps to capsules, and from capsules to class capsules.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, C H W image.
"""

import torch
from torch import Tensor, nn

from capsweep.model.autocast import without_autocast
from capsweep.model.convolution import Convolution
from capsweep.model.routing.base import RoutingFactory, of_classes
from capsweep.model.squash import squash
from capsweep.model.votes import Routed, Votes


class PrimaryCapsules(nn.Module):
    """A convolution whose channels, P at a time and at one place, are the pose of a capsule.

    "Dynamic Routing Between Capsules", section 4; conv has types * pose channels.
    """

    def __init__(self, conv: Convolution, pose: int) -> None:
        super().__init__()
        self.conv, self.pose = conv, pose

    def forward(self, features_BCHW: Tensor) -> Tensor:
        """Poses [B, I, P], children in the order type, row, column, in the weights' precision even
        inside autocast: what routing compares are lengths of sums of squares.
        """
        grouped = self.conv(features_BCHW).unflatten(1, (-1, self.pose))  # B, type, P, H, W
        pose_BIP = grouped.movedim(2, -1).flatten(1, 3)
        return squash(pose_BIP.to(self.conv.weight.dtype))


class ClassCapsules(nn.Module):
    """One capsule per class, fully connected to its children by routed linear votes.

    The vote weights are left to the network to draw.
    """

    def __init__(
        self,
        num_children: int,
        child_pose: int,
        num_classes: int,
        class_pose: int,
        routing: RoutingFactory,
    ) -> None:
        super().__init__()
        weight_IJDP = torch.empty(num_children, num_classes, class_pose, child_pose)
        self.weight_IJDP = nn.Parameter(weight_IJDP)
        self.routing = of_classes(
            routing, num_children=num_children, num_parents=num_classes, parent_pose=class_pose
        )

    @property
    def votes_per_image(self) -> int:
        """How many votes one image casts: one of every child for every parent, I J."""
        num_children, num_parents = self.weight_IJDP.shape[:2]
        return num_children * num_parents

    def forward(self, pose_BIP: Tensor, with_trace: bool = False) -> Routed:
        """Class poses and activations, in the weights' precision even inside autocast."""
        with without_autocast(pose_BIP.device.type):
            pose_BIP = pose_BIP.to(self.weight_IJDP.dtype)
            votes = Votes(pose_BIP, self.weight_IJDP, torch.linalg.vector_norm(pose_BIP, dim=-1))
            return self.routing(votes, with_trace)
