"""The network of matrix capsules. Each capsule has a pose matrix and an activation.

Source: Hinton, Sabour, Frosst 2018, "Matrix capsules with EM routing", figure 1 and section 4. The
network has a convolution, primary capsules, convolutional capsules and class capsules; the
configuration sets every size. A pose can also be a vector, that is a matrix with one row. Each
element of a vote then depends on all elements of the pose.

Shape letters: B batch, C H W image, N positions, I child types, J parent types or classes, M parent
positions, K kernel offsets, R S rows and columns of a pose, D class pose.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from capsweep.model import convolution
from capsweep.model.capsules import (
    NetworkOutput,
    draw_truncated_normal,
    make_head,
    read_output,
    squash,
    without_autocast,
)
from capsweep.model.routing import LayerSizes, Routed, RoutingFactory, make_routing
from capsweep.model.votes import ConvolutionalVotes

POSES: Mapping[str, tuple[int, int]] = {"matrix": (4, 4), "vector": (1, 16)}


class CapsuleLayer(NamedTuple):
    """The capsules of one layer for a batch of images.

    Attributes:
        pose_BNIRS: Pose matrices of the I types at N positions.
        act_BNI: Activations, in 0..1.
    """

    pose_BNIRS: Tensor
    act_BNI: Tensor


class MatrixPrimary(nn.Module):
    """Primary capsules: one 1x1 convolution for the poses and one for the activations.

    An activation is the sigmoid of x - 1, where x is the output of the second convolution.

    Args:
        channels: Number of input channels.
        types: Number of capsule types, I.
        pose: Number of rows and number of columns of a pose matrix.
        bias: Whether both convolutions have a bias. In the authors' code they have none.
    """

    def __init__(self, channels: int, types: int, pose: tuple[int, int], bias: bool) -> None:
        super().__init__()
        self.pose_shape = pose
        self.pose = nn.Conv2d(channels, types * pose[0] * pose[1], 1, bias=bias)
        self.activation = nn.Conv2d(channels, types, 1, bias=bias)

    def forward(self, features_BCHW: Tensor) -> CapsuleLayer:
        """Compute the primary capsules of feature maps [B, C, H, W].

        Positions are numbered row by row. The capsules have the precision of the weights, even
        inside autocast.
        """
        dtype = self.pose.weight.dtype
        pose_BEN = self.pose(features_BCHW).to(dtype).flatten(2)
        pose_BNIRS = pose_BEN.transpose(1, 2).unflatten(2, (-1, *self.pose_shape))
        logit_BNI = self.activation(features_BCHW).to(dtype).flatten(2).transpose(1, 2)
        return CapsuleLayer(pose_BNIRS, torch.sigmoid(logit_BNI - 1))


class MatrixCapsules(nn.Module):
    """A layer that routes pose-matrix votes to parent capsules with receptive fields.

    The constructor does not initialise the vote weights. The network that contains the layer draws
    these weights.

    Args:
        fields: For each parent position, the indices of the child positions in its receptive field.
        num_child_positions: Number of child positions, N. Some may be in no receptive field.
        types: Number of child types, I, and number of parent types, J.
        pose: Number of rows and number of columns of a pose matrix.
        routing: Factory of the routing.
        shared: Whether all children share one weight matrix for each parent type.
        offset_KD: For each kernel offset, the D numbers that coordinate addition adds to the votes.
            None: no coordinate addition.
        of_classes: Whether the parents are the class capsules. All child positions then share the
            vote weights.

    Raises:
        ValueError: If the routing does not route pose-matrix votes.
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
        unshared = (1 if of_classes else offsets, self.child_types)
        shape = *((1, 1) if shared else unshared), parents, columns, columns
        self.weight_KIJSS = nn.Parameter(torch.empty(shape))
        sizes = LayerSizes(offsets * self.child_types, parents, numbers, numbers, of_classes)
        self.routing = make_routing(routing, sizes, ConvolutionalVotes)
        self.register_buffer("child_MK", torch.tensor(fields), persistent=False)
        self.register_buffer("offset_KD", offset_KD, persistent=False)
        self.child_MK: Tensor
        self.offset_KD: Tensor | None

    @property
    def votes_per_image(self) -> int:
        """The number of votes for one image, M K I J."""
        return self.child_MK.numel() * self.child_types * self.weight_KIJSS.shape[2]

    def forward(self, children: CapsuleLayer, with_trace: bool = False) -> Routed:
        """Route the votes of a layer of children, and return the parents.

        All computations have the precision of the weights, even inside autocast.

        Args:
            children: Capsules of the layer below.
            with_trace: Whether the result has a trace of the routing.

        Returns:
            Poses [B, M J, D] and activations [B, M J] of the parents, as a `Routed`. The parents
            are ordered by position, then by type.
        """
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
        """Reshape routed parents into the layer of children for the next routing.

        Args:
            routed: Result of `forward`.
            children: The children whose votes were routed; only the shape of their poses is read.
        """
        types, pose = self.weight_KIJSS.shape[2], children.pose_BNIRS.shape[3:]
        return CapsuleLayer(
            routed.pose_BJD.unflatten(2, pose).unflatten(1, (-1, types)),
            routed.act_BJ.unflatten(1, (-1, types)),
        )


class MatrixCapsNet(nn.Module):
    """The network of matrix capsules, from images to class capsules.

    Source: "Matrix capsules with EM routing", figure 1.

    Args:
        image_shape: C, H, W of the images.
        num_classes: Number of classes.
        conv: `channels`, `kernel`, `stride` and `batch_norm` of the first convolution.
        primary: `types` and `bias` of the primary capsules.
        capsules: Lists `types`, `kernel` and `stride`, with one number for each convolutional
            capsule layer.
        pose: "matrix": a pose is a 4x4 matrix. "vector": a pose is a vector of 16 numbers, and its
            vote weights are 16x16 matrices.
        coordinates: Options of the coordinate addition, explained in `make_coordinate_offsets`:
            `place` ("right_column", "first" or "none") and `scale` ("pixels" or "grid").
        initial: Constants for the weights before training.
            `conv`: standard deviation of the first convolution.
            `pose`, `activation`: standard deviations of the convolutions of the primary capsules.
            `votes`: standard deviation of the vote weights of the convolutional capsules.
            `class_votes`: standard deviation of the vote weights of the class capsules.
            `bias`: bias of the first convolution.
            `identity`: number that is added to the diagonal of each matrix of vote weights of the
            convolutional capsules.
        routing: Factory of the routing, used in every capsule layer.
        head: How class scores are computed; `capsules.make_head` lists the choices.
        votes: Options of the votes. `shared`: whether all children of a layer share one weight
            matrix for each parent type. If `votes` is None, they do not.

    Raises:
        ValueError: If the lists of `capsules` have unequal lengths, or if a kernel does not fit;
            the message names the configuration key. Also if the routing cannot be used with `head`
            or pose-matrix votes.
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
        self.conv = convolution.Convolution(
            channels, features, conv["kernel"], conv["stride"], same=False
        )
        self.norm = nn.BatchNorm2d(features) if conv["batch_norm"] else nn.Identity()
        self.primary = MatrixPrimary(features, primary["types"], POSES[pose], primary["bias"])
        image = convolution.PositionGrid(*size)
        grid = image.after_convolution(conv["kernel"], conv["stride"], "model.conv.kernel")
        types = primary["types"]
        self.capsules = nn.ModuleList()
        sizes = convolution.zip_layers("model.capsules", capsules, "types", "kernel", "stride")
        common = POSES[pose], routing, votes is not None and votes["shared"]
        for parents, kernel, stride in sizes:
            above = grid.after_convolution(kernel, stride, "model.capsules.kernel")
            fields = convolution.list_fields(grid, kernel, stride)
            layer = MatrixCapsules(fields, grid.num_positions, (types, parents), *common)
            self.capsules.append(layer)
            grid, types = above, parents
        offset_ND = convolution.make_coordinate_offsets(grid, image, 16, **coordinates)
        everywhere, count = [range(grid.num_positions)], grid.num_positions
        self.classes = MatrixCapsules(
            everywhere, count, (types, num_classes), *common, offset_ND, of_classes=True
        )
        self.reads_activations = getattr(self.classes.routing, "reads_activations", False)
        _draw_weights(self, initial)
        rows, columns = POSES[pose]
        self.head = make_head(head, rows * columns, self.classes.routing)

    def forward(self, images_BCHW: Tensor, with_trace: bool = False) -> NetworkOutput:
        """Compute class scores and class poses of a batch of images.

        Args:
            images_BCHW: Images.
            with_trace: Whether the output has the routing traces of all capsule layers. The names
                of the layers are `capsules.0`, `capsules.1` and so on, and `classes`.
        """
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
    """Squash the pose of each capsule, and multiply the squashed pose by the activation.

    This is for routing that does not read activations and takes the length of a pose instead. The
    new activation is the length of the new pose.
    """
    pose_BNIRS, act_BNI = capsules
    squashed_BNID = squash(pose_BNIRS.flatten(3)) * act_BNI[..., None]
    act_BNI = torch.linalg.vector_norm(squashed_BNID, dim=3)
    return CapsuleLayer(squashed_BNID.view_as(pose_BNIRS), act_BNI)


def _draw_weights(network: MatrixCapsNet, initial: Mapping[str, float]) -> None:
    """Draw the weights of the network, layer by layer.

    All draws are truncated normals with mean 0, as in the authors' code.

    Args:
        network: Network whose weights are set in place.
        initial: Constants for the weights. `conv`, `pose`, `activation`, `votes` and `class_votes`
            are standard deviations. `bias` is the bias of the first convolution. `identity` is
            added to the diagonal of each matrix of vote weights of the convolutional capsules.
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
