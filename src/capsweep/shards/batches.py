"""Batches from a split in shards; the examples are read and shuffled in groups.

A pass shows each example of a split once. The order of its examples is made in three steps:

1. The split is cut into blocks of BLOCK examples, and the blocks are permuted.
2. The sequence of permuted blocks is cut into groups of BUFFER examples.
3. The examples of each group are shuffled.

The order depends only on (seed, pass). It is the same for any number of shards and in any process.
Reads are sequential within a block. Reading can begin at any position without reading the groups
before this position. Memory for the order grows only with the number of blocks.

The shuffle is not perfect. The blocks of a group come from anywhere in the split, but the examples
of one block stay in the same group, or in two groups if the block is cut. On average, two examples
of a block are BUFFER / 3 positions apart. Blocks are not smaller, because each block may need
another file, and a file has to be opened, and hashed before its first use.

Shape letters: B batch, K requested examples of a group, L classes shown in one image, C H W image.
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
from capsweep.shards.reader import StoredRanges, allocate_arrays, read_range

AT_ONCE = 1000  # examples that are hashed together
BLOCK = 2500  # examples in a block; five chunks of a file
BUFFER = 10_000  # examples in a group

Arrays: TypeAlias = dict[str, Tensor]


class ExampleGroup(NamedTuple):
    """Examples that are read together and then shuffled."""

    stretches: tuple[tuple[int, int], ...]  # the examples, as ranges (start, stop) of the split
    purpose: tuple[int | str, ...]  # arguments of `generator_of` for the shuffle

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.stretches)

    def draw_permutation(self) -> Tensor:
        """Draw the permutation that shuffles the group, int64 [len(self)]."""
        return torch.randperm(len(self), generator=generator_of(*self.purpose))


class PassOrder:
    """The order of the examples in an endless sequence of passes over a split.

    A position is an index in this sequence, counted from the beginning of the first pass.

    Args:
        count: Number of examples of the split.
        seed: Seed of the cell.
        block: Examples per block.
        buffer: Examples per group.
    """

    def __init__(self, count: int, seed: int, block: int = BLOCK, buffer: int = BUFFER) -> None:
        self.count, self.seed = count, seed
        self.block, self.buffer = block, buffer

    def iterate_groups(self, position: int, examples: int) -> Iterator[tuple[ExampleGroup, slice]]:
        """Yield the groups that contain a range of the sequence.

        Args:
            position: Position at which the range begins.
            examples: Number of examples in the range.

        Yields:
            A group, and the slice of the shuffled group that is in the range.
        """
        end = position + examples if self.count else position
        while position < end:
            number, inside = divmod(position, self.count)
            group, skipped = divmod(inside, self.buffer)
            start, stop = inside - skipped, min(inside - skipped + self.buffer, self.count)
            stretches = tuple(self._list_stretches(number, start, stop))
            # The constant 0 keeps the orders that earlier versions drew.
            members = ExampleGroup(stretches, (self.seed, "group", number, 0, group))
            taken = min(len(members) - skipped, end - position)
            yield members, slice(skipped, skipped + taken)
            position += taken

    def _list_stretches(self, number: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of the split that form a group, before the group is shuffled.

        The group has the examples start .. stop - 1 in the permuted blocks of pass `number`.
        """
        stops, ends = _permute_blocks(self.count, self.block, self.seed, number)
        place = int(torch.searchsorted(ends, start, right=True))
        while start < stop:
            left = int(ends[place]) - start  # examples that remain in the block
            first = int(stops[place]) - left
            taken = min(left, stop - start)
            yield first, first + taken
            start, place = start + taken, place + 1


@lru_cache(maxsize=1)  # consecutive groups are mostly in the same pass
def _permute_blocks(count: int, block: int, seed: int, number: int) -> tuple[Tensor, Tensor]:
    """Permute the blocks of pass `number`, and return two tensors with the ends of the blocks.

    The first tensor has the end of each block in the split. The second tensor has the end of each
    block in the permuted sequence. Both tensors are in the permuted order.
    """
    first = block * torch.randperm(
        -(-count // block), generator=generator_of(seed, "blocks", number)
    )
    stops = (first + block).clamp(max=count)
    return stops, (stops - first).cumsum(0)


class GroupDataset(Dataset[Arrays | UserError]):
    """A dataset for a DataLoader; an item is a part of a shuffled group.

    The key of an item is a pair: a group, and the slice of the shuffled group to return. If reading
    fails with a UserError, the error is returned as the item. The error is not raised, since a
    DataLoader would wrap its message in a traceback.

    Args:
        examples: The split.
    """

    def __init__(self, examples: StoredRanges) -> None:
        self.examples = examples
        # Arrays are reused: allocating them takes a fifth of the time of reading.
        self._arrays: dict[str, np.ndarray] = {}

    def __getitem__(self, request: tuple[ExampleGroup, slice]) -> Arrays | UserError:
        group, wanted = request
        count, filled = len(group), 0
        if not self._arrays or len(self._arrays["labels"]) < count:
            self._arrays = allocate_arrays(self.examples.fields, count)
        arrays = {name: array[:count] for name, array in self._arrays.items()}
        try:
            for start, stop in group.stretches:
                part = slice(filled, filled + stop - start)
                self.examples.read_into(
                    start, {name: array[part] for name, array in arrays.items()}
                )
                filled = part.stop
        except UserError as error:
            return error
        index_K = group.draw_permutation()[wanted]
        return {n: torch.from_numpy(a).index_select(0, index_K) for n, a in arrays.items()}


class ShardLoader(BatchLoader):
    """Shuffled training batches of a split in shards.

    Batch k of an epoch depends only on (seed, epoch, k). The epochs are cut from an endless
    sequence of passes over the split. So each epoch begins where the epoch before it ended.

    Args:
        examples: The split, whose device is the training device.
        batch_size: Examples per batch.
        epoch_examples: Examples per epoch.
        seed: Seed of the cell.
        workers: Number of processes that read ahead. With 0, the training process reads.
    """

    def __init__(
        self, examples: StoredRanges, batch_size: int, epoch_examples: int, seed: int, workers: int
    ) -> None:
        super().__init__(epoch_examples, batch_size)
        self.order = PassOrder(len(examples), seed)
        self.device, self.sampler = examples.device, EpochSampler()
        self._requests: list[tuple[ExampleGroup, slice]] = []  # what the current epoch reads
        self._loader: DataLoader[Arrays | UserError] = DataLoader(
            GroupDataset(examples),
            sampler=self._requests,
            batch_size=None,
            num_workers=workers,
            # A spawned worker inherits no open file, no thread and no GPU context.
            multiprocessing_context="spawn" if workers else None,
            persistent_workers=workers > 0,
            pin_memory=self.device.type == "cuda",
            # The seeds of workers must not come from the generator that the network draws from.
            generator=torch.Generator(),
        )

    def __iter__(self) -> Iterator[Batch]:
        # The epoch is read here, since Lightning may set it after it has created the iterator.
        self._requests[:] = self.order.iterate_groups(self.sampler.epoch * self.count, self.count)
        pieces: list[Arrays] = []  # parts of the next batch
        missing = self.batch_size
        for fields in self._loader:
            if isinstance(fields, UserError):
                raise fields
            # The group is copied to the device once, then cut into batches.
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
    """Join parts of shuffled groups to one batch, and scale the images to 0..1.

    Args:
        *pieces: The parts. Each part has the uint8 tensors "images" [K, C, H, W] and "labels" [K]
            or [K, L]. If a decoder needs targets, each part also has "digits" [K, L, C, H, W].
    """
    fields = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
    digits_BLCHW = fields.get("digits")
    targets_BLCHW = None if digits_BLCHW is None else to_unit(digits_BLCHW)
    return Batch(to_unit(fields["images"]), fields["labels"].long(), targets_BLCHW)


class StretchImages(EvaluatedSplit):
    """A split in shards; its batches have the stored images without random changes.

    Args:
        examples: The split.
        split: Name of the split.
        epoch_examples: Examples per training epoch. Each epoch continues after the last example of
            the epoch before it.
        test_examples: How many test examples are used; they are the first of the test split.
        workers: Number of processes that read ahead in training. With 0, the training process
            reads.

    Raises:
        ConfigError: If the test split has fewer than `test_examples` examples.
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
        """Build the loader of shuffled training batches; see `EvaluatedSplit.make_loader`."""
        return ShardLoader(self.examples, batch_size, len(self), seed, self.workers)

    def evaluation_batch(self, part: slice) -> Batch:
        """Read examples in their stored order; see `EvaluatedSplit.evaluation_batch`."""
        start, stop, _ = part.indices(len(self))
        arrays = read_range(self.examples, start, max(start, stop))
        return to_batch({n: torch.from_numpy(array).to(self.device) for n, array in arrays.items()})

    def fingerprint(self) -> str:
        """Compute the sha256 of the images and labels that an evaluation of this split uses.

        A split of `ComposedPairs` with the same examples has the same fingerprint.
        """
        digest = hashlib.sha256()
        for start in range(0, len(self), AT_ONCE):
            arrays = read_range(self.examples, start, min(start + AT_ONCE, len(self)))
            digest.update(arrays["images"].tobytes())
            digest.update(arrays["labels"].tobytes())
        return digest.hexdigest()
