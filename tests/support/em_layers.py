"""Random votes of every kind for EM routing, with everything that has a gradient.

Shape letters: B batch, N child positions, I child types, J parent types, M parent positions, K
kernel offsets, R S rows and columns of a pose, P child pose, D parent pose.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from capsweep.model import convolution
from capsweep.model.votes import ConvolutionalVotes, LocalVotes, Votes


class Layer(NamedTuple):
    """Votes, and everything that they and the routing have gradients by."""

    votes: LocalVotes
    leaves: Sequence[Tensor]
    beta_u_J: Tensor
    beta_a_J: Tensor


class Draw:
    """Random leaves of one type."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float64) -> None:
        self.generator, self.dtype = torch.Generator().manual_seed(seed), dtype

    def normal(self, *shape: int) -> Tensor:
        """Standard normal."""
        drawn = torch.randn(shape, generator=self.generator, dtype=self.dtype)
        return drawn.requires_grad_()

    def uniform(self, *shape: int) -> Tensor:
        """In 0..1."""
        drawn = torch.rand(shape, generator=self.generator, dtype=self.dtype)
        return drawn.requires_grad_()

    def layer(self, votes: LocalVotes, *leaves: Tensor) -> Layer:
        """With random betas."""
        betas = self.normal(votes.num_parents), self.normal(votes.num_parents)
        return Layer(votes, [*leaves, *betas], *betas)


def convolutional_layer(
    draw: Draw, batch: int, grid: int, kernel: int, types: tuple[int, int], rows: int, columns: int
) -> Layer:
    """A layer of a grid of children."""
    child_MK = convolution.list_fields(convolution.make_image_grid(grid, grid), kernel, stride=2)
    children, parents = types
    pose_BNIRS = draw.normal(batch, grid**2, children, rows, columns)
    activation_BNI = draw.uniform(batch, grid**2, children)
    weight_KIJSS = draw.normal(kernel**2, children, parents, columns, columns)
    votes = ConvolutionalVotes(pose_BNIRS, activation_BNI, weight_KIJSS, torch.tensor(child_MK))
    return draw.layer(votes, pose_BNIRS, activation_BNI, weight_KIJSS)


def classes_layer(draw: Draw, batch: int = 3) -> Layer:
    """Weights shared by all positions, and coordinates added."""
    pose_BNIRS, activation_BNI = draw.normal(batch, 7, 3, 4, 4), draw.uniform(batch, 7, 3)
    weight_KIJSS, offset_KD = draw.normal(1, 3, 5, 4, 4), draw.normal(7, 16).detach()
    child_MK = torch.arange(7)[None]
    votes = ConvolutionalVotes(pose_BNIRS, activation_BNI, weight_KIJSS, child_MK, offset_KD)
    return draw.layer(votes, pose_BNIRS, activation_BNI, weight_KIJSS)


def dense_layer(
    draw: Draw, batch: int, children: int, parents: int, poses: tuple[int, int]
) -> Layer:
    """All children below all parents."""
    pose_BIP, activation_BI = draw.normal(batch, children, poses[0]), draw.uniform(batch, children)
    weight_IJDP = draw.normal(children, parents, poses[1], poses[0])
    votes = Votes(pose_BIP, weight_IJDP, activation_BI)
    return draw.layer(votes, pose_BIP, activation_BI, weight_IJDP)


LAYERS: dict[str, Callable[[Draw], Layer]] = {
    "convolutional": lambda draw: convolutional_layer(draw, 3, 5, 3, (3, 5), 4, 4),
    "vectors": lambda draw: convolutional_layer(draw, 3, 5, 3, (2, 3), 1, 7),
    "classes": classes_layer,
    "dense": lambda draw: dense_layer(draw, 3, 7, 5, (3, 6)),
}
