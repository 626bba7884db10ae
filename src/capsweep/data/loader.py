"""Batches from a data set that lives on the training device."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from capsweep.data.order import Dealt, batch_sizes, epoch_order, rank_batches
from capsweep.data.presented import Batch, Evaluated, Presented, Streamed, TrainingBatches

# On an accelerator starting an operation takes longer than its work on one batch does, so several
# batches are made by the same operations. On a CPU a single batch stays in the cache.
MADE_AT_ONCE = 16


class EpochSampler:
    """Which epoch it is: Lightning calls `set_epoch` before it takes an iterator."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning at the start of an epoch, and after a resume."""
        self.epoch = epoch


def train_loader(
    examples: Presented | Streamed, batch_size: int, seed: int, rank: int = 0, world_size: int = 1
) -> TrainingBatches:
    """Shuffled batches of a split; batch_size is over all ranks."""
    if isinstance(examples, Streamed):
        return examples.loader(batch_size, seed, rank, world_size)
    return TrainLoader(examples, batch_size, seed, rank, world_size)


class TrainLoader:
    """Shuffled batches. Global batch k is a function of (seed, epoch, k), and dealt to the ranks.

    batch_size: over all ranks.
    """

    def __init__(
        self, examples: Presented, batch_size: int, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.examples, self.batch_size, self.seed = examples, batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.sampler = EpochSampler()
        self.made_at_once = 1 if examples.device.type == "cpu" else MADE_AT_ONCE

    def __len__(self) -> int:
        return -(-len(self.examples) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        sizes = batch_sizes(len(self.examples), self.batch_size)
        return dealt_out(self._batches(), sizes, self.rank, self.world_size)

    def _batches(self) -> Iterator[Batch]:
        epoch = self.sampler.epoch
        batch = self.examples.epoch(self.seed, epoch)
        order_N = epoch_order(len(self.examples), self.seed, epoch).to(self.examples.device)
        index = rank_batches(order_N, self.batch_size, self.rank, self.world_size)
        for first in range(0, len(index), self.made_at_once):
            yield from _made(batch, index[first : first + self.made_at_once])


def dealt_out(
    batches: Iterator[Batch], sizes: Sequence[int], rank: int, world_size: int
) -> Iterator[Batch]:
    """The batches of one rank, each with what it is of a global batch of so many examples."""
    if world_size == 1:
        return batches
    return (
        batch._replace(dealt=Dealt(size, rank, world_size))
        for batch, size in zip(batches, sizes, strict=True)
    )


def _made(batch: Callable[[Tensor], Batch], index: list[Tensor]) -> list[Batch]:
    """The batches of these examples, made as if they were one."""
    if len(index) == 1:
        return [batch(index[0])]
    sizes = [len(index_B) for index_B in index]
    images_BCHW, labels, targets_BLCHW, _ = batch(torch.cat(index))
    parts = [
        [None] * len(sizes) if targets_BLCHW is None else targets_BLCHW.split(sizes),
        images_BCHW.split(sizes),
        labels.split(sizes),
    ]
    return [Batch(images, labels, targets) for targets, images, labels in zip(*parts, strict=True)]


class EvaluationLoader:
    """All examples in order, as they are tested; of every batch each rank takes a stretch."""

    def __init__(
        self, examples: Evaluated, batch_size: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.examples, self.batch_size = examples, batch_size
        self.rank, self.world_size = rank, world_size

    def __len__(self) -> int:
        return -(-len(self.examples) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        sizes = batch_sizes(len(self.examples), self.batch_size)
        return dealt_out(self._batches(sizes), sizes, self.rank, self.world_size)

    def _batches(self, sizes: Sequence[int]) -> Iterator[Batch]:
        for number, size in enumerate(sizes):
            start = number * self.batch_size
            mine = Dealt(size, self.rank, self.world_size).stretch
            yield self.examples.evaluated(slice(start + mine.start, start + mine.stop))
