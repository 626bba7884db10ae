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
    left, right, above, below = compute_margins(images_NCHW, canvas)
    count, channels, height, width = images_NCHW.shape
    # Zeros right of a row are those left of the next one, and so with rows and images: where the
    # margin is as wide as the shift, as in MultiMNIST, a window is one stretch of memory.
    row, plane_rows = width + right + shift, height + below + shift
    plane = plane_rows * row
    before = (above + shift) * row + left + shift
    side, rows, columns = 2 * shift + 1, height + above + below, width + left + right
    # The last row of the last window is there in full too, as `windows_at` reads it.
    after = max(row - columns, 0)
    padded_E = images_NCHW.new_zeros(before + count * channels * plane + after)
    planes_E = padded_E[before : len(padded_E) - after]
    planes_E.view(count, channels, plane_rows, row)[..., :height, :width] = images_NCHW
    return padded_E.as_strided(
        (count, channels, side, side, rows, columns), (channels * plane, plane, row, 1, row, 1)
    )


def window_places(windows: Tensor, index: Tensor, offsets: Tensor) -> Tensor:
    """Where in memory the windows of images `index` [...] begin, by `offsets` [..., 2] of each.

    windows: [N, C, rows, columns, H, W], of which an offset names row and column.
    """
    image, _, row, column, _, _ = windows.stride()
    return index * image + offsets[..., 0] * row + offsets[..., 1] * column


def windows_at(windows: Tensor, place_B: Tensor) -> Tensor:
    """The uint8 windows [B, C, H, W] at `places`, copied: `windows[n, :, row, column]` for every n.

    Reads a whole window at an address; indexing by three tensors looks each row of pixels up and
    takes ten times as long. What is returned may lie in memory with something between its rows.
    """
    count, channels, rows, columns, height, width = windows.shape
    image, plane, row, column, down, right = windows.stride()
    last = (count - 1) * image + (rows - 1) * row + (columns - 1) * column
    # One stretch of rows, where all of it is in memory, is copied three times as fast as they are
    # one by one.
    end = windows.storage_offset() + last + (channels - 1) * plane + height * down
    has_stretch = right == 1 and down >= width and end <= windows.untyped_storage().nbytes()
    everywhere = windows.as_strided(
        (max(last + 1, 0), channels, height, down if has_stretch else width),
        (1, plane, down, right),
    )
    return everywhere.index_select(0, place_B)[..., :width]


def draw_offsets(num_examples: int, shift: int, generator: torch.Generator) -> Tensor:
    """Uniform window offsets [N, 2] in 0..2 shift, for `shift_windows`."""
    return torch.randint(2 * shift + 1, (num_examples, 2), generator=generator)


def compute_margins(images_NCHW: Tensor, canvas: int | None) -> tuple[int, int, int, int]:
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
