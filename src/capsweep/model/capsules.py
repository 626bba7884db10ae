"""Common parts of capsule networks: squashing, primary capsules, class scores and the output.

Shape letters: B batch, I children, P child pose, J classes, D class pose, C H W image.
"""

import contextlib
import math
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from capsweep.model.convolution import Convolution
from capsweep.model.routing import Routed, name_variant


def squash(s: Tensor, dim: int = -1) -> Tensor:
    """Shrink each vector to a length in [0, 1), and keep its direction.

    The result is v = |s|^2 / (1 + |s|^2) * s / |s|, equation 1 of "Dynamic Routing Between
    Capsules". It is computed as s |s| / (1 + |s|^2), because the value and the gradient of this
    form are 0 at s = 0, where s / |s| is not defined.

    Args:
        s: Vectors, of any shape.
        dim: Axis of the vectors' components.

    Returns:
        Vectors of the same shape.
    """
    length = torch.linalg.vector_norm(s, dim=dim, keepdim=True)
    return s * (length / (1 + length * length))


def squash_gradient(s: Tensor, gradient: Tensor, dim: int = -1) -> Tensor:
    """Compute the gradient with respect to `s` from the gradient with respect to squash(s).

    With l = |s| and the given gradient g, the result is

        l / (1 + l^2) g + (1 - l^2) / (l (1 + l^2)^2) (s . g) s

    At s = 0 the result is 0.

    Args:
        s: Vectors before the squash.
        gradient: Gradient g of the loss with respect to squash(s), in the shape of `s`.
        dim: Axis of the vectors' components.
    """
    length = torch.linalg.vector_norm(s, dim=dim, keepdim=True)
    shrunk = 1 + length * length
    slope = (1 - length * length) / (shrunk * shrunk)
    direction = s / length.clamp(min=torch.finfo(s.dtype).tiny)
    along = (direction * gradient).sum(dim=dim, keepdim=True)
    return gradient * (length / shrunk) + s * (slope * along)


def without_autocast(device: str) -> contextlib.AbstractContextManager[object]:
    """Return a context that switches autocast off on a device type.

    The meta device, on which a plan counts FLOPs, has no autocast. For the meta device the context
    does nothing.
    """
    if not torch.amp.is_autocast_available(device):
        return contextlib.nullcontext()
    return torch.autocast(device, enabled=False)


Traces = Mapping[str, list[dict[str, Tensor]] | None]  # by layer name


class NetworkOutput(NamedTuple):
    """The output of a network for a batch of images.

    Attributes:
        scores_BN: Scores of the classes: capsule lengths, activations or logits.
        pose_BJD: Poses of the class capsules. None for networks without capsules.
        logits_BN: With a linear head: the scores. Without a linear head, if the routing computes
            logits: the logits of the class activations. In all other cases, as in networks without
            capsules: None.
        traces: Traces of the routing, by layer name; None if no traces were requested.
    """

    scores_BN: Tensor
    pose_BJD: Tensor | None = None
    logits_BN: Tensor | None = None
    traces: Traces | None = None


@cache
def find_fault_of_kernels(device: torch.device) -> str | None:
    """Return why our Triton kernels cannot run on a device, or None if they can.

    The check runs a kernel on a tensor with one element, once per device. Triton compiles a kernel
    when the kernel is first used. The compilation needs a C compiler and the headers of Python. A
    fault is also printed to stderr in one line, unless Triton is simply not installed.
    """
    try:
        from capsweep.model.squash_kernels import SquashedChannels

        SquashedChannels.apply(torch.ones(1, 1, 1, 1, device=device), 1, torch.float32)
    except Exception as error:  # from Triton, its compilers or the driver
        fault = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if getattr(error, "name", None) != "triton":
            line = f"Triton kernels cannot run on {device}, so torch operations are used: {fault}"
            print(line, file=sys.stderr, flush=True)
        return fault
    return None


class PrimaryCapsules(nn.Module):
    """Primary capsules: a convolution that computes poses, and a squash of each pose.

    At each position, P neighbouring channels are the pose of one capsule ("Dynamic Routing Between
    Capsules", section 4). A Triton kernel squashes the poses if the poses are on a GPU, Triton can
    run there, and the `method` of the convolution is not "direct". Otherwise torch operations
    squash the poses.

    Args:
        conv: Convolution with types * pose output channels.
        pose: Number of elements of a capsule's pose, P.
        norm: Whether batch normalisation follows the convolution (Hahn et al. 2019).
    """

    def __init__(self, conv: Convolution, pose: int, norm: bool = False) -> None:
        super().__init__()
        self.conv, self.pose = conv, pose
        self.norm = nn.BatchNorm2d(conv.out_channels) if norm else None

    def forward(self, features_BCHW: Tensor) -> Tensor:
        """Compute the squashed poses of the primary capsules.

        Returns:
            Poses [B, I, P]. The capsules are ordered by type, then by row, then by column. The
            poses have the precision of the weights, even inside autocast, because routing compares
            the lengths of poses, and a length is computed from a sum of squares.
        """
        channel_BCHW, dtype = self.conv(features_BCHW), self.conv.weight.dtype
        if self.norm is not None:
            channel_BCHW = self.norm(channel_BCHW)
        by_kernels = self.conv.method != "direct" and channel_BCHW.is_cuda
        if by_kernels and find_fault_of_kernels(channel_BCHW.device) is None:
            from capsweep.model.squash_kernels import SquashedChannels

            return SquashedChannels.apply(channel_BCHW, self.pose, dtype)
        grouped = channel_BCHW.unflatten(1, (-1, self.pose))  # B, type, P, H, W
        pose_BIP = grouped.movedim(2, -1).flatten(1, 3)
        return squash(pose_BIP.to(dtype))


class LinearHead(nn.Module):
    """A linear layer that computes a logit from each class pose, the same layer for all classes.

    Source: Tsai et al. 2020, "Capsules with Inverted Dot-Product Attention Routing", with
    poses that are not squashed.

    Args:
        class_pose: Number of elements of a class capsule's pose, D.
        squashed: Whether the layer reads squashed poses. The class scores are otherwise linear in
            the votes if the parents are means of votes, as in EM routing.
    """

    def __init__(self, class_pose: int, squashed: bool = False) -> None:
        super().__init__()
        self.linear, self.squashed = nn.Linear(class_pose, 1), squashed

    def forward(self, pose_BJD: Tensor) -> Tensor:
        """Compute the logits [B, J] of the classes from the class poses.

        The logits have the precision of the weights, even inside autocast.
        """
        with without_autocast(pose_BJD.device.type):
            return self.linear(squash(pose_BJD) if self.squashed else pose_BJD).squeeze(-1)


def measure_squashed(pose_BJD: Tensor) -> Tensor:
    """Return the lengths [B, J] of squashed poses, |s|^2 / (1 + |s|^2)."""
    squared_BJ = pose_BJD.square().sum(dim=-1)
    return squared_BJ / (1 + squared_BJ)


Head = Callable[[Tensor], Tensor]  # class scores of class poses


def make_head(head: str, class_pose: int, routing: nn.Module) -> Head | None:
    """Make the function that computes class scores from class capsules.

    Args:
        head: "length": the activations of the class capsules are the scores. "squashed_length":
            the lengths of their squashed poses are. "linear": a `LinearHead` computes logits from
            the poses. "squashed_linear": it reads squashed poses. No pose is squashed twice.
        class_pose: Number of elements of a class capsule's pose, D.
        routing: Routing of the class capsules.

    Returns:
        The function, or None for "length".

    Raises:
        ValueError: If the scores are lengths and the routing gives all parents the same length.
    """
    squashed = head.startswith("squashed") and not getattr(routing, "squashes", False)
    if head.endswith("linear"):
        return LinearHead(class_pose, squashed)
    if not getattr(routing, "has_activations", True):
        raise ValueError(
            f"routing={name_variant(routing)} needs model.head=linear; add model.head=linear "
            "loss=cross_entropy"
        )
    return measure_squashed if squashed else None


def read_output(head: Head | None, routed: Routed, traces: Traces | None) -> NetworkOutput:
    """Make the output of a network from its routed class capsules.

    Args:
        head: Function that computes scores from the poses. None: the activations are the scores.
        routed: Result of routing the class capsules.
        traces: Traces by layer name, or None.
    """
    if head is None:
        return NetworkOutput(routed.act_BJ, routed.pose_BJD, routed.logit_BJ, traces)
    score_BJ = head(routed.pose_BJD)
    logit_BJ = score_BJ if isinstance(head, LinearHead) else None
    return NetworkOutput(score_BJ, routed.pose_BJD, logit_BJ, traces)


def draw_truncated_normal(weight: Tensor, sd: float) -> None:
    """Fill a weight with draws from a normal distribution truncated at two standard deviations.

    The mean is 0. This is the distribution of TensorFlow's truncated_normal. For each element, one
    uniform number is drawn. The inverse of the distribution function maps this number to the
    element. torch's trunc_normal_ is not used: it repeats draws until all values are in range, so
    it must read the values, and tensors on the meta device have no values.

    Args:
        weight: Tensor to fill in place.
        sd: Standard deviation of the normal distribution before it is truncated.
    """
    highest = math.erf(math.sqrt(2))  # P(|x| < 2 sd)
    with torch.no_grad():
        weight.uniform_(-highest, highest).erfinv_().mul_(sd * math.sqrt(2)).clamp_(-2 * sd, 2 * sd)
