"""The network of "Matrix capsules with EM routing" (Hinton, Sabour, Frosst 2018, figure 1).

A convolution, primary capsules, convolutional capsules, class capsules; every size from
configuration.

Shape letters: B batch, C H W image, J classes, D class pose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from capsweep.model.capsules import NetworkOutput, draw_truncated_normal, squash
from capsweep.model.convolution import Convolution, coordinate_offsets, make_image_grid
from capsweep.model.matrix_capsules import (
    POSES,
    CapsuleLayer,
    MatrixCapsules,
    MatrixPrimary,
    make_class_capsules,
    make_convolutional,
)
from capsweep.model.routing.base import RoutingFactory


class MatrixCapsNet(nn.Module):
    """Images to class capsules.

    image_shape: C, H, W. conv: channels, kernel, stride, batch_norm. primary: types, bias.
    capsules: types, kernel, stride, a list each, of the convolutional layers. pose: matrix (4x4),
    or vector (16 numbers, weights 16x16). coordinates: place and scale of coordinate addition.
    initial: the weights before training. Raises ValueError, naming the key, for lists of unequal
    length and kernels that do not fit.
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
    ) -> None:
        super().__init__()
        channels, *size = image_shape
        if pose not in POSES:
            raise ValueError(f"model.pose must be one of {', '.join(POSES)}, got {pose}")
        features = conv["channels"]
        self.conv = Convolution(channels, features, conv["kernel"], conv["stride"], same=False)
        self.norm = nn.BatchNorm2d(features) if conv["batch_norm"] else nn.Identity()
        self.primary = MatrixPrimary(features, primary["types"], POSES[pose], primary["bias"])
        image = make_image_grid(*size)
        grid, types = image.after_convolution(conv["kernel"], conv["stride"]), primary["types"]
        if min(grid.height, grid.width) < 1:
            raise ValueError(
                f"model.conv.kernel={conv['kernel']} does not fit into an image of {size} pixels"
            )
        self.capsules = nn.ModuleList()
        for parents, kernel, stride in _zip_layers(**capsules):
            layer = make_convolutional(grid, types, parents, kernel, stride, POSES[pose], routing)
            self.capsules.append(layer)
            grid, types = grid.after_convolution(kernel, stride), parents
        offset_ND = coordinate_offsets(grid, image, 16, **coordinates)
        self.classes = make_class_capsules(
            grid, types, num_classes, POSES[pose], offset_ND, routing
        )
        self.reads_activations = getattr(self.classes.routing, "reads_activations", False)
        MatrixInitialWeights(**initial).draw_weights(self)

    def forward(self, images_BCHW: Tensor, with_trace: bool = False) -> NetworkOutput:
        """Class activations and poses; traces of `capsules.0`, ..., `classes` on request."""
        features_BCHW = torch.relu(self.norm(self.conv(images_BCHW)))
        children = self.primary(features_BCHW)
        if not self.reads_activations:
            children = present_by_length(children)
        traces = {}
        for number, layer in enumerate(self.capsules):
            assert isinstance(layer, MatrixCapsules)
            routed = layer(children, with_trace)
            traces[f"capsules.{number}"] = routed.trace
            children = layer.make_children(routed, children)
        routed = self.classes(children, with_trace)
        traces["classes"] = routed.trace
        return NetworkOutput(
            scores_BN=routed.act_BJ,
            pose_BJD=routed.pose_BJD,
            logits_BN=routed.logit_BJ,
            traces=traces if with_trace else None,
        )


def present_by_length(capsules: CapsuleLayer) -> CapsuleLayer:
    """The same capsules for a routing that reads how present a child is off the length of its pose:
    the pose squashed, times the activation.
    """
    pose_BNIRS, act_BNI = capsules
    squashed_BNID = squash(pose_BNIRS.flatten(3)) * act_BNI[..., None]
    act_BNI = torch.linalg.vector_norm(squashed_BNID, dim=3)
    return CapsuleLayer(squashed_BNID.view_as(pose_BNIRS), act_BNI)


def _zip_layers(
    types: Sequence[int], kernel: Sequence[int], stride: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Types, kernel and stride of each layer."""
    for key, sizes in (("kernel", kernel), ("stride", stride)):
        if len(sizes) != len(types):
            raise ValueError(
                f"model.capsules.{key} needs one size for each of the {len(types)} layers of "
                f"model.capsules.types, got {list(sizes)}"
            )
    return list(zip(types, kernel, stride, strict=True))


@dataclass(frozen=True)
class MatrixInitialWeights:
    """Of a network of matrix capsules: truncated normals of zero mean, as in the authors' code.

    Deviations: conv, of the convolution, whose bias is `bias`; pose and activation, of the primary
    capsules; votes and class_votes, of the vote weights. identity: so much of the identity is added
    to vote weights of convolutional capsules.
    """

    conv: float
    bias: float
    pose: float
    activation: float
    votes: float
    class_votes: float
    identity: float

    def draw_weights(self, network: MatrixCapsNet) -> None:
        """The weights of `network`, in the order of its layers."""
        draw_truncated_normal(network.conv.weight, self.conv)
        assert network.conv.bias is not None
        nn.init.constant_(network.conv.bias, self.bias)
        for conv, deviation in (
            (network.primary.pose, self.pose),
            (network.primary.activation, self.activation),
        ):
            draw_truncated_normal(conv.weight, deviation)
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)
        for layer in network.capsules:
            assert isinstance(layer.weight_KIJSS, Tensor)
            draw_truncated_normal(layer.weight_KIJSS, self.votes)
            size = layer.weight_KIJSS.shape[-1]
            with torch.no_grad():
                layer.weight_KIJSS.add_(torch.eye(size), alpha=self.identity)
        draw_truncated_normal(network.classes.weight_KIJSS, self.class_votes)
