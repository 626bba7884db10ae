"""Small data sets: labelled noise, and readers of files of our own making."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from capsweep.config import compose
from capsweep.data.images import LabelledImages, Reader
from capsweep.errors import DataError
from capsweep.training import build


@pytest.fixture(scope="session")
def noise() -> Callable[..., LabelledImages]:
    """N random images; their labels are given, or their places, so that each is known again."""

    def make(
        count: int, channels: int = 1, height: int = 6, width: int = 5, labels: Any = None
    ) -> LabelledImages:
        generator = torch.Generator().manual_seed(count)
        shape = (count, channels, height, width)
        images_NCHW = torch.randint(1, 256, shape, generator=generator, dtype=torch.uint8)
        labels_N = torch.arange(count) if labels is None else torch.as_tensor(labels)
        return LabelledImages(images_NCHW, labels_N)

    return make


@pytest.fixture(scope="session")
def reader_of() -> Callable[..., Reader]:
    """The reader that `dataset=NAME` and further overrides give."""

    def make(*overrides: str) -> Reader:
        return build.build_reader(compose.cell(overrides).config)

    return make


@pytest.fixture(scope="session")
def refuses() -> Callable[[Reader, Path, str], None]:
    """Asserts that both `check` and `read` of a reader refuse a folder with this message."""

    def assert_refused(reader: Reader, folder: Path, message: str) -> None:
        for call in (reader.check, reader.read):
            with pytest.raises(DataError, match=message):
                call(str(folder))

    return assert_refused
