"""Examples that are there already, to be stored in another form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from capsweep.data.shards.layout import Field
from capsweep.data.shards.manifest import Content
from capsweep.data_prep.job import Maker

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Stored:
    """A job whose examples are arrays, read from official files by whoever prepares it.

    arrays: of each split, by field, from example `first` on.
    """

    content: Content
    arrays: Mapping[str, Arrays]
    first: int = 0

    def fields(self) -> Sequence[Field]:
        """Those of the arrays."""
        arrays = next(iter(self.arrays.values()))
        return [Field(name, str(array.dtype), array.shape[1:]) for name, array in arrays.items()]

    def maker(self, split: str) -> Maker:
        """Stretches of the arrays, which are not copied."""
        arrays = self.arrays[split]
        last = self.first + min(len(array) for array in arrays.values())

        def make(start: int, stop: int) -> Arrays:
            if not self.first <= start <= stop <= last:
                raise ValueError(f"examples {start}..{stop} of {split}, not {self.first}..{last}")
            part = slice(start - self.first, stop - self.first)
            return {name: array[part] for name, array in arrays.items()}

        return make

    def portion(self, split: str, start: int, stop: int) -> "Stored":
        """These examples alone: a split of smallNORB is 448 MB."""
        return replace(self, arrays={split: self.maker(split)(start, stop)}, first=start)
