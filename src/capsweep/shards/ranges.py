"""A split as stretches of its sequence: examples start .. stop - 1, wherever they come from.

All give the same arrays, by the names and types of `layout`. Nothing here needs HDF5.

Shape letters: B examples of a stretch.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from capsweep.data.batches import ExampleRanges, Field
from capsweep.data.pairs import PairSource
from capsweep.shards import pair_examples

AT_ONCE = 1000  # examples composed at once: more do not stay in the cache


def read_range(examples: ExampleRanges, start: int, stop: int) -> dict[str, np.ndarray]:
    """The examples start .. stop - 1, by field. Raises DataError, IndexError beyond the split."""
    arrays = make_room(examples.fields, stop - start)
    examples.read_into(start, arrays)
    return arrays


def make_room(fields: Sequence[Field], count: int) -> dict[str, np.ndarray]:
    """Room for so many examples."""
    return {field.name: np.empty((count, *field.shape), field.dtype) for field in fields}


class ComposedRanges:
    """Examples composed of digits by the same function as on the fly.

    source: None for a split without examples.
    """

    def __init__(
        self, source: PairSource | None, count: int, names: Sequence[str] = pair_examples.NAMES
    ) -> None:
        self.source, self.count, self.fields = source, count, []
        if source is not None:
            made = pair_examples.pair_arrays(source, 0, 1)
            parts = [(name, made[name]) for name in names]
            self.fields = [Field(name, str(one.dtype), one.shape[1:]) for name, one in parts]

    def __len__(self) -> int:
        return self.count

    def read_into(self, start: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Compose the examples from `start` on."""
        stop = start + check_range(self, start, arrays)
        self.compose_into(torch.arange(start, stop), arrays)

    def compose_into(self, k_B: Tensor, arrays: Mapping[str, np.ndarray]) -> None:
        """Compose the examples k, and no others."""
        if self.source is None:
            return
        for begun in range(0, len(k_B), AT_ONCE):
            some = slice(begun, begun + AT_ONCE)
            made = pair_examples.pair_arrays_at(self.source, k_B[some], "digits" in arrays)
            for name, array in arrays.items():
                array[some] = made[name]


class JoinedRanges:
    """Examples of which two sources have a part of the fields each."""

    def __init__(self, one: ExampleRanges, other: ExampleRanges) -> None:
        self.one, self.other = one, other
        self.fields = [*one.fields, *other.fields]

    def __len__(self) -> int:
        return len(self.one)

    def read_into(self, start: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Each fills what it has."""
        for part in (self.one, self.other):
            names = [field.name for field in part.fields]
            part.read_into(start, {name: arrays[name] for name in names})


def check_range(examples: ExampleRanges, start: int, arrays: Mapping[str, np.ndarray]) -> int:
    """How many examples from `start` on fill these arrays. Raises IndexError beyond the split."""
    counts = {len(array) for array in arrays.values()}
    count = max(counts, default=0)
    if len(counts) > 1 or start < 0 or start + count > len(examples):
        raise IndexError(f"examples {start} .. {start + count} of {len(examples)}")
    return count
