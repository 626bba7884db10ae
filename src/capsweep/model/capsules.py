"""What networks of capsules share: squashing, the precision they compute in, primary capsules, how
class scores are read, and the output.

Shape letters: B batch, I children, P child pose, J classes, D class pose, C H W image.
"""

import contextlib
import math
import sys
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from capsweep.model.convolution import Convolution
from capsweep.model.routing import Routed, name_variant


def squash(s: Tensor, dim: int = -1) -> Tensor:
    """Shrink the axis `dim` to a length in [0, 1), direction kept.

    v = |s|^2 / (1 + |s|^2) * s / |s|, equation 1 of "Dynamic Routing Between Capsules", written as
    s |s| / (1 + |s|^2): exact, with value and gradient 0 at s = 0.
    """
    length = torch.linalg.vector_norm(s, dim=dim, keepdim=True)
    return s * (length / (1 + length * length))


def squash_gradient(s: Tensor, gradient: Tensor, dim: int = -1) -> Tensor:
    """The gradient by `s` of what has this `gradient` by squash(s).

    With l = |s|: l / (1 + l^2) g + (1 - l^2) / (l (1 + l^2)^2) (s . g) s; 0 at s = 0.
    """
    length = torch.linalg.vector_norm(s, dim=dim, keepdim=True)
    shrunk = 1 + length * length
    slope = (1 - length * length) / (shrunk * shrunk)
    direction = s / length.clamp(min=torch.finfo(s.dtype).tiny)
    along = (direction * gradient).sum(dim=dim, keepdim=True)
    return gradient * (length / shrunk) + s * (slope * along)


def without_autocast(device: str) -> contextlib.AbstractContextManager[object]:
    """Autocast off; the meta device, where a plan counts FLOPs, has none to switch."""
    if not torch.amp.is_autocast_available(device):
        return contextlib.nullcontext()
    return torch.autocast(device, enabled=False)


Traces = Mapping[str, list[dict[str, Tensor]] | None]  # by layer


class NetworkOutput(NamedTuple):
    """Scores per class (capsule lengths, activations or logits), and class poses where there are
    capsules. logits_BN: what the scores are a saturating function of, where the routing knows it,
    or the scores themselves, where they are logits of a linear head.
    traces: on request, by layer, what its routing traced.
    """

    scores_BN: Tensor
    pose_BJD: Tensor | None = None
    logits_BN: Tensor | None = None
    traces: Traces | None = None


@cache
def find_fault_of_kernels(device: torch.device) -> str | None:
    """Return why our Triton kernels cannot run on `device`, tried on one number; None: they can.

    Triton compiles them where they first run, which takes a compiler of C, and headers of Python. A
    fault is told in a line, but for triton that is not installed.
    """
    try:
        from capsweep.model.squash_kernels import SquashedChannels

        SquashedChannels.apply(torch.ones(1, 1, 1, 1, device=device), 1, torch.float32)
    except Exception as error:  # of Triton, of its compilers and of the driver
        fault = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if getattr(error, "name", None) != "triton":
            line = f"Triton's kernels cannot run on {device}, torch's operations can: {fault}"
            print(line, file=sys.stderr, flush=True)
        return fault
    return None


class PrimaryCapsules(nn.Module):
    """A convolution whose channels, P at a time and at one place, are the pose of a capsule.

    "Dynamic Routing Between Capsules", section 4; conv has types * pose channels. On a GPU a Triton
    kernel squashes them; torch does where it cannot run, or where the method of conv is direct.
    """

    def __init__(self, conv: Convolution, pose: int) -> None:
        super().__init__()
        self.conv, self.pose = conv, pose

    def forward(self, features_BCHW: Tensor) -> Tensor:
        """Return poses [B, I, P], children in the order type, row, column, in the precision of the
        weights even inside autocast: what routing compares are lengths of sums of squares.
        """
        channel_BCHW, dtype = self.conv(features_BCHW), self.conv.weight.dtype
        by_kernels = self.conv.method != "direct" and channel_BCHW.is_cuda
        if by_kernels and find_fault_of_kernels(channel_BCHW.device) is None:
            from capsweep.model.squash_kernels import SquashedChannels

            return SquashedChannels.apply(channel_BCHW, self.pose, dtype)
        grouped = channel_BCHW.unflatten(1, (-1, self.pose))  # B, type, P, H, W
        pose_BIP = grouped.movedim(2, -1).flatten(1, 3)
        return squash(pose_BIP.to(dtype))


class LinearHead(nn.Module):
    """A logit of each class from its pose, by weights that all classes share (Tsai et al. 2020)."""

    def __init__(self, class_pose: int) -> None:
        super().__init__()
        self.linear = nn.Linear(class_pose, 1)

    def forward(self, pose_BJD: Tensor) -> Tensor:
        """Logits [B, J], in the weights' precision even inside autocast."""
        with without_autocast(pose_BJD.device.type):
            return self.linear(pose_BJD).squeeze(-1)


def make_head(head: str, class_pose: int, routing: nn.Module) -> LinearHead | None:
    """What reads class scores off class capsules. length: None, their activations are the scores;
    linear: a `LinearHead`.

    Raises ValueError where the parents of a routing have no activations.
    """
    if head == "linear":
        return LinearHead(class_pose)
    if not getattr(routing, "has_activations", True):
        raise ValueError(
            f"routing={name_variant(routing)} needs model.head=linear; add model.head=linear "
            "loss=cross_entropy"
        )
    return None


def read_output(
    head: LinearHead | None,
    routed: Routed,
    traces: Traces | None,
) -> NetworkOutput:
    """Return the output of a network with routed class capsules; a head gives logits alone."""
    if head is None:
        return NetworkOutput(routed.act_BJ, routed.pose_BJD, routed.logit_BJ, traces)
    logit_BJ = head(routed.pose_BJD)
    return NetworkOutput(logit_BJ, routed.pose_BJD, logit_BJ, traces)


def draw_truncated_normal(weight: Tensor, sd: float) -> None:
    """Normal, nothing beyond two deviations, as TensorFlow's truncated_normal.

    By the inverse of the distribution, one draw a weight. torch's trunc_normal_ draws again and
    again until all fit, which needs to look at the numbers, and tensors without memory have none.
    """
    highest = math.erf(math.sqrt(2))  # P(|x| < 2 sd)
    with torch.no_grad():
        weight.uniform_(-highest, highest).erfinv_().mul_(sd * math.sqrt(2)).clamp_(-2 * sd, 2 * sd)
