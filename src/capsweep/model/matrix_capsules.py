"""Capsules with a pose matrix and an activation ("Matrix capsules with EM routing", section 4).

A vector pose is a matrix of one row: its votes are linear in all its numbers.

Shape letters: B batch, N positions, I child types, J parent types, M parent positions, K kernel
offsets, R S rows and columns of a pose, C H W image.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from capsweep.model.capsules import without_autocast
from capsweep.model.convolution import PositionGrid, list_fields
from capsweep.model.routing.base import RoutingFactory, make_class_routing
from capsweep.model.votes import ConvolutionalVotes, Routed

POSES: Mapping[str, tuple[int, int]] = {"matrix": (4, 4), "vector": (1, 16)}


class CapsuleLayer(NamedTuple):
    """A layer of capsules: pose_BNIRS, act_BNI in 0..1."""

    pose_BNIRS: Tensor
    act_BNI: Tensor


class MatrixPrimary(nn.Module):
    """A 1x1 convolution to poses and one to activations.

    bias: of both; without it, as in the authors' code, the activation is a sigmoid of x - 1.
    """

    def __init__(self, channels: int, types: int, pose: tuple[int, int], bias: bool) -> None:
        super().__init__()
        self.pose_shape = pose
        self.pose = nn.Conv2d(channels, types * pose[0] * pose[1], 1, bias=bias)
        self.activation = nn.Conv2d(channels, types, 1, bias=bias)

    def forward(self, features_BCHW: Tensor) -> CapsuleLayer:
        """Capsules, positions row by row, in the weights' precision even inside autocast."""
        dtype = self.pose.weight.dtype
        pose_BEN = self.pose(features_BCHW).to(dtype).flatten(2)
        pose_BNIRS = pose_BEN.transpose(1, 2).unflatten(2, (-1, *self.pose_shape))
        logit_BNI = self.activation(features_BCHW).to(dtype).flatten(2).transpose(1, 2)
        return CapsuleLayer(pose_BNIRS, torch.sigmoid(logit_BNI - 1))


class MatrixCapsules(nn.Module):
    """Parents that each see some child positions, by routed pose-matrix votes.

    child_MK: the positions below each; of how many positions; weights: of how many kernel offsets
    there are, K, or 1 where they share one. offset_KD: added to votes. The vote weights are left to
    the network to draw.
    """

    def __init__(
        self,
        child_MK: Sequence[Sequence[int]],
        num_child_positions: int,
        weight_shape: tuple[int, int, int, int, int],
        routing: nn.Module,
        offset_KD: Tensor | None = None,
    ) -> None:
        super().__init__()
        child_types = weight_shape[1]
        seen = {child for field in child_MK for child in field}
        self.num_child_positions = num_child_positions
        self.children_without_parent = child_types * (num_child_positions - len(seen))
        self.weight_KIJSS = nn.Parameter(torch.empty(weight_shape))
        self.routing = routing
        self.register_buffer("child_MK", torch.tensor(child_MK), persistent=False)
        self.register_buffer("offset_KD", offset_KD, persistent=False)
        self.child_MK: Tensor
        self.offset_KD: Tensor | None

    @property
    def votes_per_image(self) -> int:
        """How many votes one image casts, M K I J."""
        return self.child_MK.numel() * self.weight_KIJSS.shape[1] * self.weight_KIJSS.shape[2]

    def forward(self, children: CapsuleLayer, with_trace: bool = False) -> Routed:
        """The parents, position by position, in the weights' precision even inside autocast."""
        with without_autocast(children.pose_BNIRS.device.type):
            dtype = self.weight_KIJSS.dtype
            votes = ConvolutionalVotes(
                children.pose_BNIRS.to(dtype),
                children.act_BNI.to(dtype),
                self.weight_KIJSS,
                self.child_MK,
                self.offset_KD,
            )
            return self.routing(votes, with_trace)

    def make_children(self, routed: Routed, children: CapsuleLayer) -> CapsuleLayer:
        """The parents as children of the next layer."""
        types, pose = self.weight_KIJSS.shape[2], children.pose_BNIRS.shape[3:]
        return CapsuleLayer(
            routed.pose_BJD.unflatten(2, pose).unflatten(1, (-1, types)),
            routed.act_BJ.unflatten(1, (-1, types)),
        )


def make_convolutional(
    children: PositionGrid,
    child_types: int,
    types: int,
    kernel: int,
    stride: int,
    pose: tuple[int, int],
    routing: RoutingFactory,
) -> MatrixCapsules:
    """Parents of a kernel of child positions, without padding; weights shared by their positions.

    Raises ValueError when the kernel does not fit.
    """
    parents = children.after_convolution(kernel, stride)
    if min(parents.height, parents.width) < 1:
        raise ValueError(
            f"model.capsules.kernel={kernel} does not fit into {children.height}x{children.width} "
            "positions; make it or the strides before it smaller"
        )
    offsets, (rows, columns) = kernel**2, pose
    return MatrixCapsules(
        list_fields(children, kernel, stride),
        children.num_positions,
        (offsets, child_types, types, columns, columns),
        routing(num_children=offsets * child_types, num_parents=types, parent_pose=rows * columns),
    )


def make_class_capsules(
    children: PositionGrid,
    child_types: int,
    num_classes: int,
    pose: tuple[int, int],
    offset_ND: Tensor | None,
    routing: RoutingFactory,
) -> MatrixCapsules:
    """One parent per class, which sees all children; weights shared by their positions.

    offset_ND: added to the votes of each child position.
    """
    rows, columns = pose
    return MatrixCapsules(
        [range(children.num_positions)],
        children.num_positions,
        (1, child_types, num_classes, columns, columns),
        make_class_routing(
            routing,
            num_children=children.num_positions * child_types,
            num_parents=num_classes,
            parent_pose=rows * columns,
        ),
        offset_ND,
    )
