"""Capsule layers: from feature maps to capsules, and from capsules to class capsules.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, C H W image.
"""

import contextlib
import math
from typing import Literal

import torch
from torch import Tensor, nn

from capsweep.model.routing.base import RoutingFactory
from capsweep.model.squash import squash
from capsweep.model.votes import Routed, Votes


def initialise(conv: nn.Conv2d, nonlinearity: Literal["relu", "linear"]) -> None:
    """Keep the variance of what goes through (He et al. 2015); no bias at first."""
    nn.init.kaiming_normal_(conv.weight, nonlinearity=nonlinearity)
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)


class PrimaryCapsules(nn.Module):
    """A convolution whose channels, P at a time and at one place, are the pose of a capsule.

    "Dynamic Routing Between Capsules", section 4: `types` capsules of `pose` dimensions per place.
    """

    def __init__(self, channels: int, types: int, pose: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.pose = pose
        self.conv = nn.Conv2d(channels, types * pose, kernel, stride)
        initialise(self.conv, "linear")

    def forward(self, features_BCHW: Tensor) -> Tensor:
        """Poses [B, I, P], children in the order type, row, column."""
        grouped = self.conv(features_BCHW).unflatten(1, (-1, self.pose))  # B, type, P, H, W
        return squash(grouped.movedim(2, -1).flatten(1, 3))


def _without_autocast(device: str) -> contextlib.AbstractContextManager[object]:
    """Autocast off; the meta device, where a plan counts FLOPs, has none to switch."""
    if not torch.amp.is_autocast_available(device):
        return contextlib.nullcontext()
    return torch.autocast(device, enabled=False)


class ClassCapsules(nn.Module):
    """One capsule per class, fully connected to its children by routed linear votes.

    vote_gain: expected length of a parent's input at step 0, couplings equal, for independent
    children of length 1; it keeps every class capsule between silent and saturated.
    """

    def __init__(
        self,
        num_children: int,
        child_pose: int,
        num_classes: int,
        class_pose: int,
        vote_gain: float,
        routing: RoutingFactory,
    ) -> None:
        super().__init__()
        weight_IJDP = torch.empty(num_children, num_classes, class_pose, child_pose)
        self.weight_IJDP = nn.Parameter(weight_IJDP)
        # |s_j|^2 = D I (sd / J)^2 when each child of length 1 gives 1 / J of itself
        sd = vote_gain * num_classes / math.sqrt(num_children * class_pose)
        nn.init.normal_(self.weight_IJDP, std=sd)
        self.routing = routing(
            num_children=num_children, num_parents=num_classes, parent_pose=class_pose
        )

    @property
    def votes_per_image(self) -> int:
        """How many votes one image casts: one of every child for every parent, I J."""
        num_children, num_parents = self.weight_IJDP.shape[:2]
        return num_children * num_parents

    def forward(self, pose_BIP: Tensor, with_trace: bool = False) -> Routed:
        """Class poses and activations, in the weights' precision even inside autocast."""
        with _without_autocast(pose_BIP.device.type):
            pose_BIP = pose_BIP.to(self.weight_IJDP.dtype)
            votes = Votes(pose_BIP, self.weight_IJDP, torch.linalg.vector_norm(pose_BIP, dim=-1))
            return self.routing(votes, with_trace)
