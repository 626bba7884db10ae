"""A split of shards as batches on the training device: groups of examples are read, shuffled, cut.

The order of the examples is a function of (seed, pass), and has no state. A pass shows every
example of a split once. Its blocks of BLOCK examples stand in permuted order; this sequence is cut
into groups of BUFFER examples, each of which is shuffled whole. So what is read is sequential
within a block, any position is reached without those before it, and what is kept grows with the
blocks alone. Neither the number of shards, nor how they are stored, nor who reads them enters.

How far examples travel: two blocks of a group come from anywhere in the split, and examples of one
block stay within one group, on average BUFFER / 3 positions apart. A block is several chunks of a
file, since each may mean that a file is opened, and a file of which nothing is read is not hashed.

Shape letters: B batch, G examples of a group, K of them, L classes shown in one image, C H W image.
"""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from capsweep.data.batches import (
    Batch,
    BatchLoader,
    EpochSampler,
    EvaluatedSplit,
    Split,
    generator_of,
    to_unit,
)
from capsweep.errors import ConfigError, UserError
from capsweep.shards.reader import StoredRanges, make_room, read_range

AT_ONCE = 1000  # examples that are hashed at once
BLOCK = 2500  # examples that stay neighbours until their group is shuffled; five chunks
BUFFER = 10_000  # examples of a group

Arrays: TypeAlias = dict[str, Tensor]


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

    def groups_from(self, position: int, examples: int) -> Iterator[tuple[ExampleGroup, slice]]:
        """Return the groups that so many examples from a position on are part of, and which part of
        each shuffled group they are.
        """
        end = position + examples if self.count else position
        while position < end:
            number, inside = divmod(position, self.count)
            group, skipped = divmod(inside, self.buffer)
            start, stop = inside - skipped, min(inside - skipped + self.buffer, self.count)
            stretches = tuple(self._list_stretches(number, start, stop))
            # 0 stays in the place so that old orders reproduce.
            members = ExampleGroup(stretches, (self.seed, "group", number, 0, group))
            taken = min(len(members) - skipped, end - position)
            yield members, slice(skipped, skipped + taken)
            position += taken

    def _list_stretches(self, number: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield positions start .. stop - 1 of the permuted sequence, as stretches of the split."""
        stops, ends = _permute_blocks(self.count, self.block, self.seed, number)
        place = int(torch.searchsorted(ends, start, right=True))
        while start < stop:
            left = int(ends[place]) - start  # examples of the block
            first = int(stops[place]) - left
            taken = min(left, stop - start)
            yield first, first + taken
            start, place = start + taken, place + 1


@lru_cache(maxsize=1)  # a group after the other asks for those of one pass
def _permute_blocks(count: int, block: int, seed: int, number: int) -> tuple[Tensor, Tensor]:
    """Return where each block of a pass, in their order, ends in the split, and where in the
    sequence.
    """
    first = block * torch.randperm(
        -(-count // block), generator=generator_of(seed, "blocks", number)
    )
    stops = (first + block).clamp(max=count)
    return stops, (stops - first).cumsum(0)


class GroupDataset(Dataset[Arrays | UserError]):
    """Groups of a split, read and shuffled by the process that asks for them, or by a worker.

    A request is a group, and which of its shuffled examples are wanted.
    A fault of a file or store is returned: a DataLoader wraps what is raised in a traceback.
    """

    def __init__(self, examples: StoredRanges) -> None:
        self.examples = examples
        self._room: dict[str, np.ndarray] = {}  # used again: new memory costs a fifth of reading

    def __getitem__(self, request: tuple[ExampleGroup, slice]) -> Arrays | UserError:
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
        except UserError as error:
            return error
        places_K = group.draw_permutation()[wanted]
        return {n: torch.from_numpy(a).index_select(0, places_K) for n, a in arrays.items()}


class ShardLoader(BatchLoader):
    """Shuffled batches, each a function of (seed, epoch, position).

    An epoch of `epoch_examples` goes on in the pass over all examples where the last one ended.
    workers: processes that read ahead, 0: this one reads.
    """

    def __init__(
        self,
        examples: StoredRanges,
        device: torch.device,
        batch_size: int,
        epoch_examples: int,
        seed: int,
        workers: int = 0,
    ) -> None:
        super().__init__(epoch_examples, batch_size)
        self.order = PassOrder(len(examples), seed)
        self.device, self.sampler = device, EpochSampler()
        self._requests: list[tuple[ExampleGroup, slice]] = []  # what the DataLoader brings next
        self._loader: DataLoader[Arrays | UserError] = DataLoader(
            GroupDataset(examples),
            sampler=self._requests,
            batch_size=None,
            num_workers=workers,
            # A worker that is spawned inherits no open file, no thread and no GPU.
            multiprocessing_context="spawn" if workers else None,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
            # Its own: what torch draws for workers shall not move the network's random numbers.
            generator=torch.Generator(),
        )

    def __iter__(self) -> Iterator[Batch]:
        # Lightning may set the epoch after it has made the iterator.
        self._requests[:] = self.order.groups_from(self.sampler.epoch * self.count, self.count)
        pieces: list[Arrays] = []  # of the next batch
        missing = self.batch_size
        for fields in self._loader:
            if isinstance(fields, UserError):
                raise fields
            # One copy for all batches of a group.
            group = {name: t.to(self.device, non_blocking=True) for name, t in fields.items()}
            while len(group["labels"]):
                pieces.append({name: tensor[:missing] for name, tensor in group.items()})
                group = {name: tensor[missing:] for name, tensor in group.items()}
                missing -= len(pieces[-1]["labels"])
                if not missing:
                    yield to_batch(*pieces)
                    pieces, missing = [], self.batch_size
        if pieces:
            yield to_batch(*pieces)


def to_batch(*pieces: Arrays) -> Batch:
    """Make a batch of uint8 images, labels and, where they were read, the digits alone: of the end
    of one group and the beginning of the next.
    """
    fields = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
    digits_BLCHW = fields.get("digits")
    targets_BLCHW = None if digits_BLCHW is None else to_unit(digits_BLCHW)
    return Batch(to_unit(fields["images"]), fields["labels"].long(), targets_BLCHW)


class StretchImages(EvaluatedSplit):
    """A split of shards, shown as it was stored: nothing is drawn for it when it is read.

    epoch_examples: of a training epoch, which goes on in the pass over all examples where the last
    one ended. test_examples: the first so many are tested on. workers: processes that read ahead.
    Raises ConfigError naming the key where there are fewer.
    """

    def __init__(
        self,
        examples: StoredRanges,
        split: Split,
        *,
        epoch_examples: int,
        test_examples: int,
        workers: int,
    ) -> None:
        if split == "test" and test_examples > len(examples):
            raise ConfigError(
                f"dataset.batches.test_examples must be at most the {len(examples)} test examples "
                f"of the data set, got {test_examples}"
            )
        counts = {"train": epoch_examples, "test": test_examples, "validation": len(examples)}
        self.examples, self.device, self.workers = examples, examples.device, workers
        self.count = counts[split]

    def __len__(self) -> int:
        return self.count

    def make_loader(self, batch_size: int, seed: int) -> ShardLoader:
        """Return the shuffled batches of a training epoch."""
        return ShardLoader(self.examples, self.device, batch_size, len(self), seed, self.workers)

    def evaluation_batch(self, part: slice) -> Batch:
        """Return examples in order."""
        start, stop, _ = part.indices(len(self))
        arrays = read_range(self.examples, start, max(start, stop))
        return to_batch({n: torch.from_numpy(array).to(self.device) for n, array in arrays.items()})

    def fingerprint(self) -> str:
        """Return the sha256 of all evaluated images and labels; as of pairs composed on the fly."""
        digest = hashlib.sha256()
        for start in range(0, len(self), AT_ONCE):
            arrays = read_range(self.examples, start, min(start + AT_ONCE, len(self)))
            digest.update(arrays["images"].tobytes())
            digest.update(arrays["labels"].tobytes())
        return digest.hexdigest()
