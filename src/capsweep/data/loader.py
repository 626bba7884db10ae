"""Batches from a data set that lives on the training device."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from capsweep.data.order import epoch_order, rank_batches
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
    """Shuffled batches; each a function of (seed, epoch, rank, world size, position)."""

    def __init__(
        self, examples: Presented, batch_size: int, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.examples, self.batch_size, self.seed = examples, batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.sampler = EpochSampler()
        self.made_at_once = 1 if examples.device.type == "cpu" else MADE_AT_ONCE

    def __len__(self) -> int:
        full, rest = divmod(len(self.examples), self.batch_size)
        return full + (rest >= self.world_size)

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.sampler.epoch
        batch = self.examples.epoch(self.seed, epoch)
        order_N = epoch_order(len(self.examples), self.seed, epoch).to(self.examples.device)
        index = rank_batches(order_N, self.batch_size, self.rank, self.world_size)
        for first in range(0, len(index), self.made_at_once):
            yield from _made(batch, index[first : first + self.made_at_once])


def _made(batch: Callable[[Tensor], Batch], index: list[Tensor]) -> list[Batch]:
    """The batches of these examples, made as if they were one."""
    if len(index) == 1:
        return [batch(index[0])]
    sizes = [len(index_B) for index_B in index]
    parts = [
        [None] * len(sizes) if part is None else part.split(sizes)
        for part in batch(torch.cat(index))
    ]
    return [Batch(*of_one) for of_one in zip(*parts, strict=True)]


class EvaluationLoader:
    """All examples in order, as they are tested; rank r of R takes every R-th batch."""

    def __init__(
        self, examples: Evaluated, batch_size: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.examples, self.batch_size = examples, batch_size
        self.rank, self.world_size = rank, world_size

    def __len__(self) -> int:
        return len(self._starts())

    def __iter__(self) -> Iterator[Batch]:
        for start in self._starts():
            yield self.examples.evaluated(slice(start, start + self.batch_size))

    def _starts(self) -> range:
        step = self.batch_size * self.world_size
        return range(self.rank * self.batch_size, len(self.examples), step)
