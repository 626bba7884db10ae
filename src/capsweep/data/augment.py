"""Augmentation of a whole batch by tensor operations, on the device where the images are.

Shape letters: B batch, N examples, C H W image.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def shift_windows(images_NCHW: Tensor, shift: int) -> Tensor:
    """All (2 shift + 1)^2 integer shifts of every image, zero fill, as a view on one padded copy.

    Returns [N, C, 2 shift + 1, 2 shift + 1, H, W]; the image moved down by dy and right by dx is at
    [n, :, shift - dy, shift - dx].
    """
    height, width = images_NCHW.shape[-2:]
    padded = F.pad(images_NCHW, [shift] * 4)
    return padded.unfold(2, height, 1).unfold(3, width, 1)


def draw_offsets(num_examples: int, shift: int, generator: torch.Generator) -> Tensor:
    """Uniform window offsets [N, 2] in 0..2 shift, for `shift_windows`."""
    return torch.randint(2 * shift + 1, (num_examples, 2), generator=generator)


def to_unit(images: Tensor) -> Tensor:
    """uint8 0..255 to float32 0..1."""
    return images.to(torch.float32).div_(255)
