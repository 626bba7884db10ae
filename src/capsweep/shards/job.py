"""A job: what the examples of a data set are, and what makes any range of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from capsweep.data.batches import Field
from capsweep.shards.manifest import Content

# Examples start .. stop - 1 of a split, by field.
Maker: TypeAlias = Callable[[int, int], Mapping[str, np.ndarray]]


class Job(Protocol):
    """One data set. It pickles and holds numpy arrays, since Ray's workers get it."""

    @property
    def content(self) -> Content:
        """What the examples are."""
        ...

    def fields(self) -> Sequence[Field]:
        """What is stored of each example."""
        ...

    def maker(self, split: str) -> Maker:
        """The function that makes examples of a split."""
        ...
