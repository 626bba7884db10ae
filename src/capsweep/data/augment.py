"""Augmentation of a whole batch by tensor operations, on the device where the images are.

Shape letters: B batch, N examples, C H W image.
"""

import torch
from torch import Tensor

from capsweep.errors import ConfigError


def shift_windows(images_NCHW: Tensor, shift: int, canvas: int | None = None) -> Tensor:
    """All (2 shift + 1)^2 integer shifts of every image, zero fill, as a view on one padded copy.

    canvas: pixels of a square in whose middle the images lie, None: theirs. Returns
    [N, C, 2 shift + 1, 2 shift + 1, H, W]; the image moved down by dy and right by dx is at
    [n, :, shift - dy, shift - dx]. Raises ConfigError when the images have no room.
    """
    left, right, above, below = margins(images_NCHW, canvas)
    count, channels, height, width = images_NCHW.shape
    # Zeros right of a row are those left of the next one, and so with rows and images: where the
    # margin is as wide as the shift, as in MultiMNIST, a window is one stretch of memory.
    row, plane_rows = width + right + shift, height + below + shift
    plane = plane_rows * row
    before = (above + shift) * row + left + shift
    padded_E = images_NCHW.new_zeros(before + count * channels * plane)
    padded_E[before:].view(count, channels, plane_rows, row)[..., :height, :width] = images_NCHW
    side, rows, columns = 2 * shift + 1, height + above + below, width + left + right
    return padded_E.as_strided(
        (count, channels, side, side, rows, columns), (channels * plane, plane, row, 1, row, 1)
    )


def places(windows: Tensor, index: Tensor, offsets: Tensor) -> Tensor:
    """Where in memory the windows of images `index` [...] begin, by `offsets` [..., 2] of each.

    windows: [N, C, rows, columns, H, W], of which an offset names row and column.
    """
    image, _, row, column, _, _ = windows.stride()
    return index * image + offsets[..., 0] * row + offsets[..., 1] * column


def windows_at(windows: Tensor, place_B: Tensor) -> Tensor:
    """The windows [B, C, H, W] at `places`, copied: `windows[n, :, row, column]` for every n.

    Reads whole windows at an address; indexing by three tensors looks each row of pixels up and
    takes ten times as long.
    """
    count, channels, rows, columns, height, width = windows.shape
    image, plane, row, column, *within = windows.stride()
    last = (count - 1) * image + (rows - 1) * row + (columns - 1) * column
    everywhere = windows.as_strided(
        (max(last + 1, 0), channels, height, width), (1, plane, *within)
    )
    return everywhere.index_select(0, place_B)


def draw_offsets(num_examples: int, shift: int, generator: torch.Generator) -> Tensor:
    """Uniform window offsets [N, 2] in 0..2 shift, for `shift_windows`."""
    return torch.randint(2 * shift + 1, (num_examples, 2), generator=generator)


def margins(images_NCHW: Tensor, canvas: int | None) -> tuple[int, int, int, int]:
    """Pixels left, right, above and below of images in the middle of canvas x canvas; None: none.

    Raises ConfigError when they have no room.
    """
    if canvas is None:
        return 0, 0, 0, 0
    height, width = images_NCHW.shape[2:]
    if max(height, width) > canvas:
        raise ConfigError(f"a canvas of {canvas} pixels has no room for images of {height}x{width}")
    above, left = (canvas - height) // 2, (canvas - width) // 2
    return left, canvas - width - left, above, canvas - height - above


def to_unit(images: Tensor) -> Tensor:
    """uint8 0..255 to float32 0..1."""
    return images.to(torch.float32).div_(255)
