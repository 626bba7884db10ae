"""Noise of MNIST's size: pixels and labels on which no speed depends."""

import torch

from capsweep.data.images import LabelledImages
from capsweep.data.pairs import PairSource

SIDE = 28  # pixels of an image
MARGIN, MOVED = 4, 4  # pixels, of MultiMNIST


def digits(count: int) -> LabelledImages:
    """So many images, ten classes."""
    draw = torch.Generator().manual_seed(0)
    images_NCHW = torch.randint(0, 256, (count, 1, SIDE, SIDE), generator=draw, dtype=torch.uint8)
    return LabelledImages(images_NCHW, torch.arange(count) % 10)


def pair_source(count: int) -> PairSource:
    """What composes pairs of so many digits."""
    return PairSource(digits(count), "train", 0, MARGIN, MOVED)
