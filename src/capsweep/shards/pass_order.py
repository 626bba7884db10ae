"""The order in which shards are read: a function of (seed, pass), and no state.

A pass shows every example of a split once. Its blocks of BLOCK examples stand in permuted order;
this sequence is cut into groups of BUFFER examples, each of which is shuffled whole. So what is
read is sequential within a block, any position is reached without those before it, and what is kept
grows with the blocks alone. Neither the number of shards, nor how they are stored, nor who reads
them, nor how many devices share a batch enters.

How far examples travel: two blocks of a group come from anywhere in the split, and examples of one
block stay within one group, on average BUFFER / 3 positions apart. A block is several chunks of a
file, since each may mean that a file is opened, and a file of which nothing is read is not hashed.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from capsweep.data.randomness import generator_of

BLOCK = 2500  # examples that stay neighbours until their group is shuffled; five chunks
BUFFER = 10_000  # examples of a group
RANGE = 0  # of a pass; once each rank had one of its own


class Group(NamedTuple):
    """Examples that are read together, as stretches (start, stop) of the split, and then shuffled.

    place: of the random numbers that shuffle them.
    """

    stretches: tuple[tuple[int, int], ...]
    place: tuple[int | str, ...]

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.stretches)

    def draw_permutation(self) -> Tensor:
        """The permutation of its examples."""
        return torch.randperm(len(self), generator=generator_of(*self.place))


class PassOrder:
    """The endless sequence: pass after pass over `count` examples.

    A position counts examples from the beginning of the first pass.
    """

    def __init__(self, count: int, seed: int, block: int = BLOCK, buffer: int = BUFFER) -> None:
        self.count, self.seed = count, seed
        self.block, self.buffer = block, buffer
        self._blocks: tuple[int, Tensor, int] | None = None

    def groups_from(self, position: int, examples: int) -> Iterator[tuple[Group, slice]]:
        """The groups that so many examples from a position on are part of, and which part of each
        shuffled group they are.
        """
        end = position + examples if self.count else position
        while position < end:
            number, inside = divmod(position, self.count)
            group, skipped = divmod(inside, self.buffer)
            members = self._make_group(number, group)
            taken = min(len(members) - skipped, end - position)
            yield members, slice(skipped, skipped + taken)
            position += taken

    def _make_group(self, number: int, group: int) -> Group:
        """A group of pass `number`."""
        start = group * self.buffer
        stop = min(start + self.buffer, self.count)
        stretches = tuple(self._list_stretches(number, start, stop))
        return Group(stretches, (self.seed, "group", number, RANGE, group))

    def _list_stretches(self, number: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Positions start .. stop - 1 of the permuted sequence, as stretches of the split."""
        blocks, short = self._permute_blocks(number)
        place, offset = self._find_place(start, short)
        while start < stop:
            first = int(blocks[place]) * self.block
            ended = min(first + self.block, self.count)
            taken = min(ended - first - offset, stop - start)
            yield first + offset, first + offset + taken
            start, place, offset = start + taken, place + 1, 0

    def _find_place(self, position: int, short: int) -> tuple[int, int]:
        """Which block of the permuted order a position lies in, and how far inside."""
        missing = -self.count % self.block  # in the block at place `short`, of all the shortest
        if position < short * self.block + self.block - missing:
            return divmod(position, self.block)
        return divmod(position + missing, self.block)

    def _permute_blocks(self, number: int) -> tuple[Tensor, int]:
        """The blocks of a pass in their order, and the place of the split's last one."""
        if self._blocks is None or self._blocks[0] != number:
            count = -(-self.count // self.block)
            generator = generator_of(self.seed, "blocks", number)
            blocks = torch.randperm(count, generator=generator)
            self._blocks = number, blocks, int((blocks == count - 1).nonzero()[0, 0])
        return self._blocks[1:]
