"""CapsNet: a convolution, primary capsules, class capsules and a decoder.

Figures 1 and 2 of "Dynamic Routing Between Capsules" show this network. The configuration sets
every size.

Shape letters: B batch, I children, J parents or classes, P child pose, D class pose, C H W image.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from capsweep.model import capsules
from capsweep.model.convolution import Convolution
from capsweep.model.resnet import ResNetStem
from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingFactory, make_routing
from capsweep.model.votes import Votes

FIRST_SD, SD = 0.05, 0.1  # authors' standard deviations: first convolution, all later layers


class CapsNet(nn.Module):
    """The capsule network of Sabour, Frosst, Hinton 2017; its routing algorithm can be exchanged.

    Source: "Dynamic Routing Between Capsules", figures 1 and 2.

    Args:
        image_shape: C, H, W of the images.
        num_classes: Number of classes.
        conv: `channels`, `kernel` and `stride` of the first convolution. None: the primary capsules
            read the image, or the features of `stem`.
        primary: `types`, `pose`, `kernel` and `stride` of the primary capsules. Three keys are
            optional. `divided` (default false): whether the weighted sums of the convolution are
            divided by the number of types, as in the authors' code. (With `none_of_the_above`, the
            divisor is the number of types plus 1.) `bias` (default true): whether the convolution
            has a bias. `norm` (default false): whether batch normalisation follows the convolution.
        class_pose: Number of elements of a class capsule's pose, D.
        vote_gain: Expected length, before training, of the weighted sum of the votes for a class
            capsule. The couplings are assumed to be equal, and the children to be independent and
            of length 1. Only the scheme "variance" of `InitialWeights` uses this value.
        routing: Factory of the routing of the class capsules.
        decoder: Factory of the decoder, called with `num_classes`, `class_pose` and `image_shape`.
            None: no decoder.
        padding: Padding of both convolutions. "valid": no padding. "same": zeros around the input,
            as in TensorFlow.
        initial: Arguments of the constructor of `InitialWeights`, the scheme that draws the weights
            before training. None: the defaults of that class.
        head: How class scores are computed; `capsules.make_head` lists the choices.
        votes: Options of the votes. `shared` (default false): whether all children share one weight
            matrix for each class.
        stem: Factory of layers before the first convolution, such as a `ResNetStem`, called with
            the number of image channels. None: there are no such layers.

    Raises:
        ValueError: If a kernel does not fit into the image; the message names the configuration
            key. Also if the routing cannot be used with `primary.divided`, `head` or linear votes.
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
        stem: Callable[[int], ResNetStem] | None = None,
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        types, pose, same = primary["types"], primary["pose"], padding == "same"
        weights = InitialWeights(**(initial or {}))
        self.stem = None
        if stem is not None:
            self.stem = stem(channels)
            channels = self.stem.outputs
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
        self.primary = capsules.PrimaryCapsules(convolution, pose, primary.get("norm", False))
        self.classes = ClassCapsules(
            num_children=types * self._count_positions(height) * self._count_positions(width),
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
        self.head = capsules.make_head(head, class_pose, self.classes.routing)

    def forward(self, images_BCHW: Tensor, with_trace: bool = False) -> capsules.NetworkOutput:
        """Compute class scores and class poses of a batch of images.

        Args:
            images_BCHW: Images.
            with_trace: Whether the output has the routing trace of the layer `classes`.
        """
        features_BCHW = images_BCHW if self.stem is None else self.stem(images_BCHW)
        if self.conv is not None:
            # On a GPU the features may be a view. If a view is changed in place, autograd copies
            # the gradient of the view.
            relu = torch.relu if images_BCHW.is_cuda else torch.relu_
            features_BCHW = relu(self.conv(features_BCHW))
        routed = self.classes(self.primary(features_BCHW), with_trace)
        return capsules.read_output(
            self.head, routed, {"classes": routed.trace} if with_trace else None
        )

    def _count_positions(self, size: int) -> int:
        """Return the number of positions of primary capsules along an axis of `size` pixels."""
        layers = {"stem": self.stem, "conv": self.conv, "primary": self.primary.conv}
        for name, layer in layers.items():
            size = size if layer is None else layer.count_positions(size, f"model.{name}.kernel")
        return size


def count_first_shares(routing: RoutingFactory, num_parents: int) -> int:
    """Return the number of equal shares into which each child is divided when routing starts.

    This is the number of parents, or that number plus 1 with `none_of_the_above`.

    Raises:
        ValueError: If the routing variant has no `CouplingRule`, the rule that divides each child
            among its parents.
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
    """A layer that has one capsule per class and routes the linear votes of all children.

    The constructor does not initialise the vote weights. The network that contains the layer draws
    these weights.

    Args:
        num_children: Number of children, I.
        child_pose: Number of elements of a child's pose, P.
        num_classes: Number of classes, J.
        class_pose: Number of elements of a class capsule's pose, D.
        routing: Factory of the routing.
        shared: Whether all children share one weight matrix for each class (Gu and Tresp 2020). If
            so, axis I of the parameter `weight_IJDP` has length 1.

    Raises:
        ValueError: If the routing does not route linear votes.
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
        """The number of votes for one image, I J: one for each pair of a child and a class."""
        return self.num_children * self.weight_IJDP.shape[1]

    def forward(self, pose_BIP: Tensor, with_trace: bool = False) -> Routed:
        """Compute the class capsules of a batch from the poses of their children.

        All computations have the precision of the weights, even inside autocast.

        Args:
            pose_BIP: Poses of the children.
            with_trace: Whether the result has a trace of the routing.

        Returns:
            Poses [B, J, D] and activations [B, J] of the classes, as a `Routed`.
        """
        with capsules.without_autocast(pose_BIP.device.type):
            pose_BIP = pose_BIP.to(self.weight_IJDP.dtype)
            weight_IJDP = self.weight_IJDP.expand(self.num_children, -1, -1, -1)
            activation_BI = None
            if getattr(self.routing, "reads_activations", False):
                activation_BI = torch.linalg.vector_norm(pose_BIP, dim=-1)
            return self.routing(Votes(pose_BIP, weight_IJDP, activation_BI), with_trace)


class Decoder(nn.Module):
    """A decoder that computes an image from the class poses with fully connected layers.

    Each hidden layer is followed by ReLU. The last layer is followed by a sigmoid.

    Args:
        hidden: Number of units of each hidden layer.
        num_classes: Number of classes, J.
        class_pose: Number of elements of a class capsule's pose, D.
        image_shape: C, H, W of the images.
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
        """Compute images from the poses of the selected classes.

        Args:
            pose_BJD: Poses of the class capsules.
            mask_BJ: 1 for each selected class, else 0. The poses of the classes that are not
                selected are replaced by 0.

        Returns:
            Images [B, C, H, W] with values in 0..1.
        """
        masked = pose_BJD * mask_BJ[..., None]
        return self.layers(masked.flatten(1)).unflatten(1, self.image_shape)


@dataclass(frozen=True)
class InitialWeights:
    """The scheme that draws the weights of a capsule network before training.

    Attributes:
        weights: Distribution of the weights.
            "variance": normal distributions that keep the variance of a signal through a layer (He
            et al. 2015). Class capsules then start with medium lengths, not near 0 or 1.
            "truncated_normal": truncated normal distributions with the standard deviations of the
            authors' code. This scheme needs `primary.divided=true`. Otherwise all class capsules
            start saturated, with lengths near 1.
        bias: Initial bias of the convolutions and the decoder. None: the bias is 0 in convolutions
            and torch's default in the decoder.
    """

    weights: str = "variance"
    bias: float | None = None

    def draw_convolution(self, conv: Convolution, nonlinearity: Literal["relu", "linear"]) -> None:
        """Draw the weights of a convolution in place, and set its bias.

        Args:
            conv: The convolution.
            nonlinearity: "relu" for the first convolution of the network, "linear" for the
                convolution of the primary capsules.
        """
        if self.weights == "truncated_normal":
            capsules.draw_truncated_normal(conv.weight, FIRST_SD if nonlinearity == "relu" else SD)
        else:
            nn.init.kaiming_normal_(conv.weight, nonlinearity=nonlinearity)
        if conv.bias is not None:
            nn.init.constant_(conv.bias, self.bias or 0.0)

    def draw_votes(self, weight_IJDP: Tensor, gain: float, num_children: int | None = None) -> None:
        """Draw vote weights in place.

        Args:
            weight_IJDP: Vote weights.
            gain: Expected length of the weighted sum of the votes for a parent. The couplings are
                assumed to be equal, and the children to be independent and of length 1. Only the
                scheme "variance" uses this value.
            num_children: Number of children, I. None: the length of the first axis of the weights.
                If all children share one weight matrix, this axis has length 1, and the number must
                be given.
        """
        if self.weights == "truncated_normal":
            capsules.draw_truncated_normal(weight_IJDP, SD)
            return
        weights, parents, parent_pose, _ = weight_IJDP.shape
        # |s_j|^2 = D I (sd / J)^2 for children of length 1 and couplings 1 / J
        children = num_children or weights
        nn.init.normal_(weight_IJDP, std=gain * parents / math.sqrt(children * parent_pose))

    def draw_decoder(self, decoder: nn.Module) -> None:
        """Draw the weights of the decoder's linear layers in place, and set their biases.

        The scheme "variance" keeps torch's initial weights. If `bias` is None, torch's initial
        biases are kept.
        """
        for layer in decoder.modules():
            if isinstance(layer, nn.Linear):
                if self.weights == "truncated_normal":
                    capsules.draw_truncated_normal(layer.weight, SD)
                if self.bias is not None:
                    nn.init.constant_(layer.bias, self.bias)
