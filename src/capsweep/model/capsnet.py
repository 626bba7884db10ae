"""CapsNet: convolution, primary capsules, class capsules, decoder.

"Dynamic Routing Between Capsules", figures 1 and 2; every size from configuration.
Shape letters: B batch, I children, J parents or classes, P child pose, D class pose, C H W image.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from capsweep.model.capsules import (
    NetworkOutput,
    PrimaryCapsules,
    draw_truncated_normal,
    make_head,
    read_output,
    without_autocast,
)
from capsweep.model.convolution import Convolution
from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingFactory, make_routing
from capsweep.model.votes import Votes

FIRST_SD, SD = 0.05, 0.1  # the authors': of the first convolution, and of everything after it


class CapsNet(nn.Module):
    """Images to class capsules, and back through the decoder when there is one.

    image_shape: C, H, W. conv: channels, kernel, stride; None: primary capsules read the image.
    primary: types, pose, kernel, stride; divided: its weighted sums are shared out among the types,
    as in the authors' code; bias, true where it is not said. padding: valid or same, of both
    convolutions. decoder: makes one, given num_classes, class_pose and image_shape. initial:
    weights and bias before training, as in `InitialWeights`. head: length or linear, what class
    scores are. votes: shared, as in `ClassCapsules`.
    Raises ValueError, naming the key, when the kernels do not fit into the image.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        num_classes: int,
        conv: Mapping[str, int] | None,
        primary: Mapping[str, Any],
        class_pose: int,
        vote_gain: float,
        routing: RoutingFactory,
        decoder: Callable[..., nn.Module] | None = None,
        padding: str = "valid",
        initial: Mapping[str, Any] | None = None,
        head: str = "length",
        votes: Mapping[str, bool] | None = None,
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        types, pose, same = primary["types"], primary["pose"], padding == "same"
        weights = InitialWeights(**(initial or {}))
        self.conv = None
        if conv is not None:
            inputs, channels = channels, conv["channels"]
            self.conv = Convolution(inputs, channels, conv["kernel"], conv["stride"], same)
            weights.draw_convolution(self.conv, "relu")
        convolution = Convolution(
            channels,
            types * pose,
            primary["kernel"],
            primary["stride"],
            same,
            divisor=count_first_shares(routing, types) if primary.get("divided") else 1,
            bias=primary.get("bias", True),
        )
        weights.draw_convolution(convolution, "linear")
        self.primary = PrimaryCapsules(convolution, pose)
        self.classes = ClassCapsules(
            num_children=types * self._count_places(height) * self._count_places(width),
            child_pose=pose,
            num_classes=num_classes,
            class_pose=class_pose,
            routing=routing,
            **(votes or {}),
        )
        weights.draw_votes(self.classes.weight_IJDP, vote_gain, self.classes.num_children)
        self.decoder = None
        if decoder is not None:
            self.decoder = decoder(
                num_classes=num_classes, class_pose=class_pose, image_shape=image_shape
            )
            weights.draw_decoder(self.decoder)
        self.head = make_head(head, class_pose, self.classes.routing)

    def forward(self, images_BCHW: Tensor, with_trace: bool = False) -> NetworkOutput:
        """Class scores and poses; the trace of `classes` on request."""
        features_BCHW = images_BCHW
        if self.conv is not None:
            # On a GPU features may be a view, whose gradient is copied if it changes in place.
            relu = torch.relu if images_BCHW.is_cuda else torch.relu_
            features_BCHW = relu(self.conv(images_BCHW))
        routed = self.classes(self.primary(features_BCHW), with_trace)
        return read_output(self.head, routed, {"classes": routed.trace} if with_trace else None)

    def _count_places(self, size: int) -> int:
        """Primary capsule places along one image axis."""
        for name, conv in (("conv", self.conv), ("primary", self.primary.conv)):
            size = size if conv is None else conv.count_places(size, f"model.{name}.kernel")
        return size


def count_first_shares(routing: RoutingFactory, num_parents: int) -> int:
    """Among how many a child divides itself: the parents, and none of the above.

    Raises ValueError for a variant whose children do not divide themselves.
    """
    layer = routing(sizes=LayerSizes(1, num_parents, 1, 1))
    rule = getattr(layer, "coupling_rule", None)
    if not isinstance(rule, CouplingRule):
        raise ValueError(
            "model.primary.divided=true needs a routing whose children divide themselves, such as "
            "routing=dynamic; set model.primary.divided=false"
        )
    return num_parents + rule.none_of_the_above


class ClassCapsules(nn.Module):
    """One capsule per class, fully connected to its children by routed linear votes.

    shared: all children of a parent have one weight (Gu and Tresp 2020), so that weight_IJDP has 1
    in place of I. The vote weights are left to the network to draw.
    """

    def __init__(
        self,
        num_children: int,
        child_pose: int,
        num_classes: int,
        class_pose: int,
        routing: RoutingFactory,
        shared: bool = False,
    ) -> None:
        super().__init__()
        self.num_children = num_children
        weights = 1 if shared else num_children
        weight_IJDP = torch.empty(weights, num_classes, class_pose, child_pose)
        self.weight_IJDP = nn.Parameter(weight_IJDP)
        sizes = LayerSizes(num_children, num_classes, child_pose, class_pose, of_classes=True)
        self.routing = make_routing(routing, sizes, Votes)

    @property
    def votes_per_image(self) -> int:
        """How many votes one image casts: one of every child for every parent, I J."""
        return self.num_children * self.weight_IJDP.shape[1]

    def forward(self, pose_BIP: Tensor, with_trace: bool = False) -> Routed:
        """Class poses and activations, in the weights' precision even inside autocast."""
        with without_autocast(pose_BIP.device.type):
            pose_BIP = pose_BIP.to(self.weight_IJDP.dtype)
            weight_IJDP = self.weight_IJDP.expand(self.num_children, -1, -1, -1)
            activation_BI = None
            if getattr(self.routing, "reads_activations", False):
                activation_BI = torch.linalg.vector_norm(pose_BIP, dim=-1)
            return self.routing(Votes(pose_BIP, weight_IJDP, activation_BI), with_trace)


class Decoder(nn.Module):
    """An image from a class pose: fully connected layers, ReLU between them, a sigmoid at the end.

    Shape letters: B batch, J classes, D pose, C H W image.
    """

    def __init__(
        self,
        hidden: Sequence[int],
        *,
        num_classes: int,
        class_pose: int,
        image_shape: Sequence[int],
    ) -> None:
        super().__init__()
        sizes = [num_classes * class_pose, *hidden]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(
            *layers, nn.Linear(sizes[-1], math.prod(image_shape)), nn.Sigmoid()
        )
        self.image_shape = tuple(image_shape)

    def forward(self, pose_BJD: Tensor, mask_BJ: Tensor) -> Tensor:
        """Images [B, C, H, W] in 0..1 of the poses whose mask is 1; the others count as 0."""
        masked = pose_BJD * mask_BJ[..., None]
        return self.layers(masked.flatten(1)).unflatten(1, self.image_shape)


@dataclass(frozen=True)
class InitialWeights:
    """The weights of a capsule network before training.

    weights: a scheme. variance: what goes through a layer keeps its variance (He et al. 2015), and
    class capsules start neither silent nor saturated. truncated_normal: the authors' code, whose
    deviations go together with the division of primary votes; without it all classes start
    saturated. bias: of convolutions and decoder; None: what the scheme leaves there.
    """

    weights: str = "variance"
    bias: float | None = None

    def draw_convolution(self, conv: Convolution, nonlinearity: Literal["relu", "linear"]) -> None:
        """Of the first convolution (relu) or of the primary capsules' (linear)."""
        if self.weights == "truncated_normal":
            draw_truncated_normal(conv.weight, FIRST_SD if nonlinearity == "relu" else SD)
        else:
            nn.init.kaiming_normal_(conv.weight, nonlinearity=nonlinearity)
        if conv.bias is not None:
            nn.init.constant_(conv.bias, self.bias or 0.0)

    def draw_votes(self, weight_IJDP: Tensor, gain: float, num_children: int | None = None) -> None:
        """Of the vote weights; num_children: where they share one.

        gain (of variance alone): expected length of a parent's input, couplings equal, for
        independent children of length 1.
        """
        if self.weights == "truncated_normal":
            draw_truncated_normal(weight_IJDP, SD)
            return
        weights, parents, parent_pose, _ = weight_IJDP.shape
        # |s_j|^2 = D I (sd / J)^2 when each child of length 1 gives 1 / J of itself
        children = num_children or weights
        nn.init.normal_(weight_IJDP, std=gain * parents / math.sqrt(children * parent_pose))

    def draw_decoder(self, decoder: nn.Module) -> None:
        """Of the decoder's linear layers; variance leaves them as torch makes them."""
        for layer in decoder.modules():
            if isinstance(layer, nn.Linear):
                if self.weights == "truncated_normal":
                    draw_truncated_normal(layer.weight, SD)
                if self.bias is not None:
                    nn.init.constant_(layer.bias, self.bias)
