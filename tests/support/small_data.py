"""Small data sets: labelled noise, and the readers that a configuration declares."""

from pathlib import Path
from typing import Any

import pytest
import torch

from capsweep.config import compose
from capsweep.data.batches import Batch, TrainLoader
from capsweep.data.images import LabelledImages, Reader
from capsweep.errors import DataError
from capsweep.training import build


def make_noise(
    count: int, channels: int = 1, height: int = 6, width: int = 5, labels: Any = None
) -> LabelledImages:
    """N random images; their labels are given, or their places, so that each is known again."""
    generator = torch.Generator().manual_seed(count)
    shape = (count, channels, height, width)
    images_NCHW = torch.randint(1, 256, shape, generator=generator, dtype=torch.uint8)
    labels_N = torch.arange(count) if labels is None else torch.as_tensor(labels)
    return LabelledImages(images_NCHW, labels_N)


def epoch(loader: TrainLoader, number: int) -> list[Batch]:
    """All batches of an epoch."""
    loader.sampler.set_epoch(number)
    return list(loader)


def reader_of(*overrides: str) -> Reader:
    """The reader that `dataset=NAME` and further overrides give."""
    return build.build_reader(compose.cell(overrides).config)


def refuses(reader: Reader, folder: Path, message: str) -> None:
    """Assert that both `check` and `read` of a reader refuse a folder with this message."""
    for call in (reader.check, reader.read):
        with pytest.raises(DataError, match=message):
            call(str(folder))
