"""A job: what the examples of a data set are, and what makes any stretch of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from capsweep.data.shards.layout import Field
from capsweep.data.shards.manifest import Content

# Examples start .. stop - 1 of a split, by field.
Maker: TypeAlias = Callable[[int, int], Mapping[str, np.ndarray]]


class Job(Protocol):
    """One data set. Workers are given a portion of it, so it pickles, and holds numpy's arrays."""

    @property
    def content(self) -> Content:
        """What the examples are."""
        ...

    def fields(self) -> Sequence[Field]:
        """What is stored of each example."""
        ...

    def maker(self, split: str) -> Maker:
        """Ready to make examples of a split; what that takes is prepared once, by the caller."""
        ...

    def portion(self, split: str, start: int, stop: int) -> "Job":
        """What a worker needs that makes examples start .. stop - 1: itself, where that is small.

        It has the same content and fields, and its `maker` of this split makes these examples.
        """
        ...


def without_validation(overrides: Sequence[str]) -> list[str]:
    """Overrides of a data set of test images alone: how many training images are held out is no
    matter of it, and what it is by default may be more than there are of few digits.
    """
    is_given = any(text.startswith("dataset.validation=") for text in overrides)
    return list(overrides) if is_given else [*overrides, "dataset.validation=0"]
