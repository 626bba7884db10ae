"""Receptive fields: which child positions stand below a parent position.

Shape letters: N child positions (H rows, W columns), M parent positions, K kernel offsets.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

PLACES: Mapping[str, tuple[int, ...]] = {"right_column": (3, 7), "first": (0, 1), "none": ()}
SCALES = ("pixels", "grid")
PIXELS_OF_A_UNIT = 100  # the authors' code


@dataclass(frozen=True)
class Grid:
    """Positions in rows and columns, and where the centres of what they see are in the image.

    first, step: pixels, of the first centre and from one to the next, in both axes.
    """

    height: int
    width: int
    first: float
    step: float

    @property
    def positions(self) -> int:
        """N."""
        return self.height * self.width

    def below(self, kernel: int, stride: int) -> "Grid":
        """The positions of a kernel on this grid, without padding."""
        return Grid(
            height=(self.height - kernel) // stride + 1,
            width=(self.width - kernel) // stride + 1,
            first=self.first + self.step * (kernel - 1) / 2,
            step=self.step * stride,
        )


def of_image(height: int, width: int) -> Grid:
    """The pixels."""
    return Grid(height, width, first=0.0, step=1.0)


def fields(children: Grid, kernel: int, stride: int) -> list[list[int]]:
    """[M][K], row by row: the child position at each kernel offset of each parent position."""
    parents = children.below(kernel, stride)
    return [
        [
            (row * stride + dy) * children.width + column * stride + dx
            for dy in range(kernel)
            for dx in range(kernel)
        ]
        for row in range(parents.height)
        for column in range(parents.width)
    ]


def coordinate_offsets(
    children: Grid, image: Grid, numbers: int, place: str, scale: str
) -> Tensor | None:
    """[N, D]: what is added to the votes of each child position (coordinate addition, section 4.1).

    place: the two of `numbers` that get row and column. right_column: the last of the first two
    rows of a 4x4 pose (the paper); first: the first two (the authors' code); none: no addition,
    None. scale. pixels: from the centre of the image to the centre of what the child sees, in
    hundreds (the authors' code); grid: (row + 1/2) / rows. Raises ValueError for others.
    """
    if place not in PLACES:
        raise ValueError(f"model.coordinates.place must be one of {', '.join(PLACES)}, got {place}")
    if scale not in SCALES:
        raise ValueError(f"model.coordinates.scale must be one of {', '.join(SCALES)}, got {scale}")
    if place == "none":
        return None
    offset_ND = torch.zeros(children.positions, numbers)
    for number, coordinate_N in zip(
        PLACES[place], _coordinates(children, image, scale), strict=True
    ):
        offset_ND[:, number] = torch.tensor(coordinate_N)
    return offset_ND


def _coordinates(children: Grid, image: Grid, scale: str) -> tuple[list[float], list[float]]:
    """Row and column of every position."""
    if scale == "grid":
        rows = [(row + 0.5) / children.height for row in range(children.height)]
        columns = [(column + 0.5) / children.width for column in range(children.width)]
    else:
        rows = [_from_centre(children, row, image.height) for row in range(children.height)]
        columns = [_from_centre(children, column, image.width) for column in range(children.width)]
    return [row for row in rows for _ in columns], [column for _ in rows for column in columns]


def _from_centre(children: Grid, position: int, pixels: int) -> float:
    centre = children.first + children.step * position
    return (centre - (pixels - 1) / 2) / PIXELS_OF_A_UNIT
