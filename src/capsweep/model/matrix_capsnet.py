"""The network of "Matrix capsules with EM routing" (Hinton, Sabour, Frosst 2018, figure 1), and its
capsules with a pose matrix and an activation (section 4).

A convolution, primary capsules, convolutional capsules, class capsules; every size from
configuration. A vector pose is a matrix of one row: its votes are linear in all its numbers.

Shape letters: B batch, C H W image, N positions, I child types, J parent types or classes, M parent
positions, K kernel offsets, R S rows and columns of a pose, D class pose.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from capsweep.model.capsules import (
    NetworkOutput,
    draw_truncated_normal,
    make_head,
    read_output,
    squash,
    without_autocast,
)
from capsweep.model.convolution import (
    Convolution,
    PositionGrid,
    list_fields,
    make_coordinate_offsets,
    zip_layers,
)
from capsweep.model.routing import LayerSizes, Routed, RoutingFactory, make_routing
from capsweep.model.votes import ConvolutionalVotes

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

    fields: the child positions below each parent position, of so many. types: of children and of
    parents. offset_KD: added to votes. of_classes: whether parents are the classes, whose children
    share their weights at all positions. shared: all children of a parent type have one weight. The
    vote weights are left to the network to draw.
    """

    def __init__(
        self,
        fields: Sequence[Sequence[int]],
        num_child_positions: int,
        types: tuple[int, int],
        pose: tuple[int, int],
        routing: RoutingFactory,
        shared: bool,
        offset_KD: Tensor | None = None,
        of_classes: bool = False,
    ) -> None:
        super().__init__()
        (self.child_types, parents), (rows, columns) = types, pose
        offsets, numbers = len(fields[0]), rows * columns
        self.num_child_positions = num_child_positions
        own = (1 if of_classes else offsets, self.child_types)
        shape = *((1, 1) if shared else own), parents, columns, columns
        self.weight_KIJSS = nn.Parameter(torch.empty(shape))
        sizes = LayerSizes(offsets * self.child_types, parents, numbers, numbers, of_classes)
        self.routing = make_routing(routing, sizes, ConvolutionalVotes)
        self.register_buffer("child_MK", torch.tensor(fields), persistent=False)
        self.register_buffer("offset_KD", offset_KD, persistent=False)
        self.child_MK: Tensor
        self.offset_KD: Tensor | None

    @property
    def votes_per_image(self) -> int:
        """How many votes one image casts, M K I J."""
        return self.child_MK.numel() * self.child_types * self.weight_KIJSS.shape[2]

    def forward(self, children: CapsuleLayer, with_trace: bool = False) -> Routed:
        """The parents, position by position, in the weights' precision even inside autocast."""
        with without_autocast(children.pose_BNIRS.device.type):
            dtype = self.weight_KIJSS.dtype
            votes = ConvolutionalVotes(
                children.pose_BNIRS.to(dtype),
                children.act_BNI.to(dtype),
                self.weight_KIJSS.expand(-1, self.child_types, -1, -1, -1),
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


class MatrixCapsNet(nn.Module):
    """Images to class capsules.

    image_shape: C, H, W. conv: channels, kernel, stride, batch_norm. primary: types, bias.
    capsules: types, kernel, stride, a list each, of the convolutional layers. pose: matrix (4x4),
    or vector (16 numbers, weights 16x16). coordinates: place and scale of coordinate addition.
    initial: the weights before training. head: length or linear, what class scores are. votes:
    shared, as in `MatrixCapsules`, of all layers. Raises ValueError, naming the key, for lists of
    unequal length and kernels that do not fit.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        num_classes: int,
        conv: Mapping[str, Any],
        primary: Mapping[str, Any],
        capsules: Mapping[str, Sequence[int]],
        pose: str,
        coordinates: Mapping[str, str],
        initial: Mapping[str, float],
        routing: RoutingFactory,
        head: str = "length",
        votes: Mapping[str, bool] | None = None,
    ) -> None:
        super().__init__()
        channels, *size = image_shape
        features = conv["channels"]
        self.conv = Convolution(channels, features, conv["kernel"], conv["stride"], same=False)
        self.norm = nn.BatchNorm2d(features) if conv["batch_norm"] else nn.Identity()
        self.primary = MatrixPrimary(features, primary["types"], POSES[pose], primary["bias"])
        image = PositionGrid(*size)
        grid = image.after_convolution(conv["kernel"], conv["stride"], "model.conv.kernel")
        types = primary["types"]
        self.capsules = nn.ModuleList()
        sizes = zip_layers("model.capsules", capsules, "types", "kernel", "stride")
        alike = POSES[pose], routing, votes is not None and votes["shared"]
        for parents, kernel, stride in sizes:
            above = grid.after_convolution(kernel, stride, "model.capsules.kernel")
            fields = list_fields(grid, kernel, stride)
            layer = MatrixCapsules(fields, grid.num_positions, (types, parents), *alike)
            self.capsules.append(layer)
            grid, types = above, parents
        offset_ND = make_coordinate_offsets(grid, image, 16, **coordinates)
        everywhere, count = [range(grid.num_positions)], grid.num_positions
        self.classes = MatrixCapsules(
            everywhere, count, (types, num_classes), *alike, offset_ND, of_classes=True
        )
        self.reads_activations = getattr(self.classes.routing, "reads_activations", False)
        _draw_weights(self, initial)
        rows, columns = POSES[pose]
        self.head = make_head(head, rows * columns, self.classes.routing)

    def forward(self, images_BCHW: Tensor, with_trace: bool = False) -> NetworkOutput:
        """Class scores and poses; traces of `capsules.0`, ..., `classes` on request."""
        features_BCHW = torch.relu(self.norm(self.conv(images_BCHW)))
        children = self.primary(features_BCHW)
        if not self.reads_activations:
            children = squash_capsules(children)
        traces = {}
        for number, layer in enumerate(self.capsules):
            assert isinstance(layer, MatrixCapsules)
            routed = layer(children, with_trace)
            traces[f"capsules.{number}"] = routed.trace
            children = layer.make_children(routed, children)
        routed = self.classes(children, with_trace)
        traces["classes"] = routed.trace
        return read_output(self.head, routed, traces if with_trace else None)


def squash_capsules(capsules: CapsuleLayer) -> CapsuleLayer:
    """The same capsules for a routing that reads how present a child is off the length of its pose:
    the pose squashed, times the activation.
    """
    pose_BNIRS, act_BNI = capsules
    squashed_BNID = squash(pose_BNIRS.flatten(3)) * act_BNI[..., None]
    act_BNI = torch.linalg.vector_norm(squashed_BNID, dim=3)
    return CapsuleLayer(squashed_BNID.view_as(pose_BNIRS), act_BNI)


def _draw_weights(network: MatrixCapsNet, initial: Mapping[str, float]) -> None:
    """In the order of the layers: truncated normals of zero mean, as in the authors' code.

    Deviations: conv, of the convolution, whose bias is `bias`; pose and activation, of the primary
    capsules; votes and class_votes, of the vote weights. identity: so much of the identity is added
    to vote weights of convolutional capsules.
    """
    draw_truncated_normal(network.conv.weight, initial["conv"])
    assert network.conv.bias is not None
    nn.init.constant_(network.conv.bias, initial["bias"])
    primary = {"pose": network.primary.pose, "activation": network.primary.activation}
    for name, conv in primary.items():
        draw_truncated_normal(conv.weight, initial[name])
        if conv.bias is not None:
            nn.init.zeros_(conv.bias)
    for layer in network.capsules:
        assert isinstance(layer.weight_KIJSS, Tensor)
        draw_truncated_normal(layer.weight_KIJSS, initial["votes"])
        size = layer.weight_KIJSS.shape[-1]
        with torch.no_grad():
            layer.weight_KIJSS.add_(torch.eye(size), alpha=initial["identity"])
    draw_truncated_normal(network.classes.weight_KIJSS, initial["class_votes"])
