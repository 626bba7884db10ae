"""Groups of examples: the order in which a split is read, and the reading of a group.

The order is a function of (seed, pass), and has no state.

A pass shows every example of a split once. Its blocks of BLOCK examples stand in permuted order;
this sequence is cut into groups of BUFFER examples, each of which is shuffled whole. So what is
read is sequential within a block, any position is reached without those before it, and what is kept
grows with the blocks alone. Neither the number of shards, nor how they are stored, nor who reads
them enters.

How far examples travel: two blocks of a group come from anywhere in the split, and examples of one
block stay within one group, on average BUFFER / 3 positions apart. A block is several chunks of a
file, since each may mean that a file is opened, and a file of which nothing is read is not hashed.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from capsweep.data.batches import ExampleRanges, Field, generator_of
from capsweep.errors import DataError

BLOCK = 2500  # examples that stay neighbours until their group is shuffled; five chunks
BUFFER = 10_000  # examples of a group

Fields: TypeAlias = dict[str, Tensor]


class ExampleGroup(NamedTuple):
    """Examples that are read together, as stretches (start, stop) of the split, and then shuffled.

    place: of the random numbers that shuffle them.
    """

    stretches: tuple[tuple[int, int], ...]
    place: tuple[int | str, ...]

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.stretches)

    def draw_permutation(self) -> Tensor:
        """Return the permutation of its examples."""
        return torch.randperm(len(self), generator=generator_of(*self.place))


class PassOrder:
    """The endless sequence: pass after pass over `count` examples.

    A position counts examples from the beginning of the first pass.
    """

    def __init__(self, count: int, seed: int, block: int = BLOCK, buffer: int = BUFFER) -> None:
        self.count, self.seed = count, seed
        self.block, self.buffer = block, buffer
        self._blocks: tuple[int, Tensor, int] | None = None

    def groups_from(self, position: int, examples: int) -> Iterator[tuple[ExampleGroup, slice]]:
        """Return the groups that so many examples from a position on are part of, and which part of
        each shuffled group they are.
        """
        end = position + examples if self.count else position
        while position < end:
            number, inside = divmod(position, self.count)
            group, skipped = divmod(inside, self.buffer)
            members = self._make_group(number, group)
            taken = min(len(members) - skipped, end - position)
            yield members, slice(skipped, skipped + taken)
            position += taken

    def _make_group(self, number: int, group: int) -> ExampleGroup:
        """Return a group of pass `number`."""
        start = group * self.buffer
        stop = min(start + self.buffer, self.count)
        stretches = tuple(self._list_stretches(number, start, stop))
        # 0 stays in the place so that old orders reproduce.
        return ExampleGroup(stretches, (self.seed, "group", number, 0, group))

    def _list_stretches(self, number: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield positions start .. stop - 1 of the permuted sequence, as stretches of the split."""
        blocks, short = self._permute_blocks(number)
        place, offset = self._find_place(start, short)
        while start < stop:
            first = int(blocks[place]) * self.block
            ended = min(first + self.block, self.count)
            taken = min(ended - first - offset, stop - start)
            yield first + offset, first + offset + taken
            start, place, offset = start + taken, place + 1, 0

    def _find_place(self, position: int, short: int) -> tuple[int, int]:
        """Return which block of the permuted order a position lies in, and how far inside."""
        missing = -self.count % self.block  # in the block at place `short`, of all the shortest
        if position < short * self.block + self.block - missing:
            return divmod(position, self.block)
        return divmod(position + missing, self.block)

    def _permute_blocks(self, number: int) -> tuple[Tensor, int]:
        """Return the blocks of a pass in their order, and the place of the split's last one."""
        if self._blocks is None or self._blocks[0] != number:
            count = -(-self.count // self.block)
            generator = generator_of(self.seed, "blocks", number)
            blocks = torch.randperm(count, generator=generator)
            self._blocks = number, blocks, int((blocks == count - 1).nonzero()[0, 0])
        return self._blocks[1:]


class GroupDataset(Dataset[Fields | DataError]):
    """Groups of a split, read and shuffled by the process that asks for them, or by a worker.

    A request is a group, and which of its shuffled examples are wanted.
    What is wrong with a file is returned: a DataLoader wraps what is raised in a traceback.
    """

    def __init__(self, examples: ExampleRanges) -> None:
        self.examples = examples
        self._room: dict[str, np.ndarray] = {}  # used again: new memory costs a fifth of reading

    def __getitem__(self, request: tuple[ExampleGroup, slice]) -> Fields | DataError:
        group, wanted = request
        count, filled = len(group), 0
        if not self._room or len(self._room["labels"]) < count:
            self._room = make_room(self.examples.fields, count)
        arrays = {name: array[:count] for name, array in self._room.items()}
        try:
            for start, stop in group.stretches:
                part = slice(filled, filled + stop - start)
                self.examples.read_into(
                    start, {name: array[part] for name, array in arrays.items()}
                )
                filled = part.stop
        except DataError as error:
            return error
        places_K = group.draw_permutation()[wanted]
        return {n: torch.from_numpy(a).index_select(0, places_K) for n, a in arrays.items()}


def make_room(fields: Sequence[Field], count: int) -> dict[str, np.ndarray]:
    """Allocate arrays for so many examples."""
    return {field.name: np.empty((count, *field.shape), field.dtype) for field in fields}


def read_range(examples: ExampleRanges, start: int, stop: int) -> dict[str, np.ndarray]:
    """Return the examples start .. stop - 1, by field. Raises DataError, IndexError beyond the
    split.
    """
    arrays = make_room(examples.fields, stop - start)
    examples.read_into(start, arrays)
    return arrays
