"""What the weights of a capsule network are before training.

variance: what goes through a layer keeps its variance (He et al. 2015), and class capsules start
neither silent nor saturated. truncated_normal: the authors' code, whose deviations go together with
the division of primary votes; without it all classes start saturated.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from capsweep.model.convolution import Convolution

if TYPE_CHECKING:
    from capsweep.model.matrix_capsnet import MatrixCapsNet

FIRST_SD, SD = 0.05, 0.1  # the authors': of the first convolution, and of everything after it
SCHEMES = ("variance", "truncated_normal")


@dataclass(frozen=True)
class Initial:
    """weights: a scheme. bias: of convolutions and decoder; None: what the scheme leaves there."""

    weights: str = "variance"
    bias: float | None = None

    def __post_init__(self) -> None:
        if self.weights not in SCHEMES:
            known = ", ".join(SCHEMES)
            raise ValueError(f"model.initial.weights must be one of {known}, got {self.weights}")

    def convolution(self, conv: Convolution, nonlinearity: Literal["relu", "linear"]) -> None:
        """Of the first convolution (relu) or of the primary capsules' (linear)."""
        if self.weights == "truncated_normal":
            _truncated_normal(conv.weight, FIRST_SD if nonlinearity == "relu" else SD)
        else:
            nn.init.kaiming_normal_(conv.weight, nonlinearity=nonlinearity)
        assert conv.bias is not None
        nn.init.constant_(conv.bias, self.bias or 0.0)

    def votes(self, weight_IJDP: Tensor, gain: float) -> None:
        """Of the vote weights.

        gain (of variance alone): expected length of a parent's input, couplings equal, for
        independent children of length 1.
        """
        if self.weights == "truncated_normal":
            _truncated_normal(weight_IJDP, SD)
            return
        children, parents, parent_pose, _ = weight_IJDP.shape
        # |s_j|^2 = D I (sd / J)^2 when each child of length 1 gives 1 / J of itself
        nn.init.normal_(weight_IJDP, std=gain * parents / math.sqrt(children * parent_pose))

    def decoder(self, decoder: nn.Module) -> None:
        """Of the decoder's linear layers; variance leaves them as torch makes them."""
        for layer in decoder.modules():
            if isinstance(layer, nn.Linear):
                if self.weights == "truncated_normal":
                    _truncated_normal(layer.weight, SD)
                if self.bias is not None:
                    nn.init.constant_(layer.bias, self.bias)


@dataclass(frozen=True)
class MatrixInitial:
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

    def draw(self, network: "MatrixCapsNet") -> None:
        """The weights of `network`, in the order of its layers."""
        _truncated_normal(network.conv.weight, self.conv)
        assert network.conv.bias is not None
        nn.init.constant_(network.conv.bias, self.bias)
        for conv, deviation in (
            (network.primary.pose, self.pose),
            (network.primary.activation, self.activation),
        ):
            _truncated_normal(conv.weight, deviation)
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)
        for layer in network.capsules:
            assert isinstance(layer.weight_KIJSS, Tensor)
            _truncated_normal(layer.weight_KIJSS, self.votes)
            size = layer.weight_KIJSS.shape[-1]
            with torch.no_grad():
                layer.weight_KIJSS.add_(torch.eye(size), alpha=self.identity)
        _truncated_normal(network.classes.weight_KIJSS, self.class_votes)


def _truncated_normal(weight: Tensor, sd: float) -> None:
    """Normal, nothing beyond two deviations, as TensorFlow's truncated_normal.

    By the inverse of the distribution, one draw a weight. torch's trunc_normal_ draws again and
    again until all fit, which needs to look at the numbers, and tensors without memory have none.
    """
    highest = math.erf(math.sqrt(2))  # P(|x| < 2 sd)
    with torch.no_grad():
        weight.uniform_(-highest, highest).erfinv_().mul_(sd * math.sqrt(2)).clamp_(-2 * sd, 2 * sd)
