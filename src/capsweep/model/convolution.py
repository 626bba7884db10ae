"""Convolutions of capsule networks, and the positions that their kernels see.

Shape letters: B batch, C H W image; N child positions (H rows, W columns), M parent positions, K
kernel offsets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Convolution(nn.Conv2d):
    """A convolution padded as TensorFlow names it, also where the stride is above 1.

    valid: no padding. same: ceil(size / stride) places, zeros around, the odd one below and right.
    divisor: the weighted sums are divided by it, the bias is not.
    """

    def __init__(
        self, channels: int, outputs: int, kernel: int, stride: int, same: bool, divisor: int = 1
    ) -> None:
        super().__init__(channels, outputs, kernel, stride)
        self.same, self.divisor = same, divisor

    def count_places(self, size: int) -> int:
        """Places along an image axis of `size` pixels; below 1 when the kernel does not fit."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        return -(-size // stride) if self.same else (size - kernel) // stride + 1

    def forward(self, input: Tensor) -> Tensor:
        """Feature maps [B, C, H, W]."""
        if self.same:
            input = F.pad(
                input, [*self._padding_of(input.shape[3]), *self._padding_of(input.shape[2])]
            )
        if self.divisor == 1:
            return super().forward(input)
        # A division of the weights touches fewer numbers than one of the features or the sums.
        weight: Tensor = self.weight / self.divisor
        return torch.conv2d(input, weight, self.bias, self.stride)

    def _padding_of(self, size: int) -> tuple[int, int]:
        """Zeros before and after."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        missing = max((self.count_places(size) - 1) * stride + kernel - size, 0)
        return missing // 2, missing - missing // 2


def zip_layers(
    section: str, sizes: Mapping[str, Sequence[int]], *keys: str
) -> list[tuple[int, ...]]:
    """The sizes of layer after layer, in the order of the keys. Raises ValueError naming a list of
    another length than the first.
    """
    first, *others = keys
    for key in others:
        if len(sizes[key]) != len(sizes[first]):
            raise ValueError(
                f"{section}.{key} needs one size for each of the {len(sizes[first])} layers of "
                f"{section}.{first}, got {list(sizes[key])}"
            )
    return list(zip(*(sizes[key] for key in keys), strict=True))


def to_channels_last(network: nn.Module) -> nn.Module:
    """Let the convolutions of `network` compute with the channels of a pixel side by side.

    In place, and returned. A convolution whose weights are laid out so gives features laid out so,
    whatever its input's layout. Shapes, values and the keys of `state_dict` stay; weights saved in
    either layout load into the other. It is faster on CPUs, and what a GPU's tensor cores
    read. Vote weights, which have four axes too, stay as they are.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight.data
            # Not .contiguous(): weights of one input channel count as both, and would give features
            # in the other layout.
            laid_out = torch.empty_like(weight, memory_format=torch.channels_last)
            module.weight.data = laid_out.copy_(weight)
    return network


PLACES: Mapping[str, tuple[int, ...]] = {"right_column": (3, 7), "first": (0, 1), "none": ()}
PIXELS_OF_A_UNIT = 100  # the authors' code


@dataclass(frozen=True)
class PositionGrid:
    """Positions in rows and columns, and where the centres of what they see are in the image.

    first, step: pixels, of the first centre and from one to the next, in both axes; without them
    the pixels themselves.
    """

    height: int
    width: int
    first: float = 0.0
    step: float = 1.0

    @property
    def num_positions(self) -> int:
        """N."""
        return self.height * self.width

    def after_convolution(self, kernel: int, stride: int) -> "PositionGrid":
        """The positions of a kernel on this grid, without padding."""
        return PositionGrid(
            height=(self.height - kernel) // stride + 1,
            width=(self.width - kernel) // stride + 1,
            first=self.first + self.step * (kernel - 1) / 2,
            step=self.step * stride,
        )


def list_fields(children: PositionGrid, kernel: int, stride: int) -> list[list[int]]:
    """[M][K], row by row: the child position at each kernel offset of each parent position."""
    parents = children.after_convolution(kernel, stride)
    return [
        [
            (row * stride + dy) * children.width + column * stride + dx
            for dy in range(kernel)
            for dx in range(kernel)
        ]
        for row in range(parents.height)
        for column in range(parents.width)
    ]


def make_coordinate_offsets(
    children: PositionGrid, image: PositionGrid, numbers: int, place: str, scale: str
) -> Tensor | None:
    """[N, D]: what is added to the votes of each child position (coordinate addition, section 4.1).

    place: the two of `numbers` that get row and column. right_column: the last of the first two
    rows of a 4x4 pose (the paper); first: the first two (the authors' code); none: no addition,
    None. scale. pixels: from the centre of the image to the centre of what the child sees, in
    hundreds (the authors' code); grid: (row + 1/2) / rows.
    """
    if place == "none":
        return None
    offset_HWD = torch.zeros(children.height, children.width, numbers)
    row_number, column_number = PLACES[place]
    rows = _list_coordinates(children, children.height, image.height, scale)
    columns = _list_coordinates(children, children.width, image.width, scale)
    offset_HWD[:, :, row_number] = torch.tensor(rows)[:, None]
    offset_HWD[:, :, column_number] = torch.tensor(columns)
    return offset_HWD.flatten(0, 1)


def _list_coordinates(children: PositionGrid, size: int, pixels: int, scale: str) -> list[float]:
    """Of the positions along an axis: `size` of them in an image of so many pixels."""
    if scale == "grid":
        return [(position + 0.5) / size for position in range(size)]
    centres = (children.first + children.step * position for position in range(size))
    return [(centre - (pixels - 1) / 2) / PIXELS_OF_A_UNIT for centre in centres]
