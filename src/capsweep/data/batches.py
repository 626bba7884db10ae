"""Batches from a data set that lives on the training device."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from capsweep.data.images import LabelledImages
from capsweep.data.randomness import RankShare, batch_sizes, epoch_order, rank_batches

Split = Literal["train", "validation", "test"]
# On an accelerator starting an operation takes longer than its work on one batch does, so several
# batches are made by the same operations. On a CPU a single batch stays in the cache.
MADE_AT_ONCE = 16


class Batch(NamedTuple):
    """float32 images [B, C, H, W] and int64 labels, [B] or [B, L], on the training device.

    targets_BLCHW: what a decoder shall draw for each label, in 0..1; None: the images themselves.
    dealt: which part of a batch of several devices this is; None: all of it.
    """

    images_BCHW: Tensor
    labels: Tensor
    targets_BLCHW: Tensor | None = None
    share: RankShare | None = None

    @property
    def num_counted(self) -> int:
        """Examples that count: all but a stand-in."""
        return len(self.labels) if self.share is None else self.share.num_examples


class EvaluatedSplit(Protocol):
    """One split, whose batches are on the training device: all that validating and testing ask."""

    def __len__(self) -> int: ...

    @property
    def device(self) -> torch.device:
        """Where its batches are."""
        ...

    def evaluated(self, part: slice) -> Batch:
        """Examples in order, as they are validated and tested: the same every time."""
        ...


class DeviceSplit(EvaluatedSplit, Protocol):
    """A split that lies on the training device, of which any examples can be asked for."""

    def epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """What makes batches of examples [B] in a training epoch: a function of (seed, epoch)."""
        ...


@runtime_checkable
class StreamedSplit(EvaluatedSplit, Protocol):
    """A split that is read while it is trained on, in an order of its own."""

    def loader(
        self, batch_size: int, seed: int, rank: int = 0, world_size: int = 1
    ) -> "TrainingBatches":
        """Its shuffled batches; batch_size is over all ranks."""
        ...


class TrainingBatches(Protocol):
    """Shuffled batches of one rank, epoch after epoch, as Lightning takes them."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...


class Presenter(Protocol):
    """Makes a `Presented` of the examples of a split, on whose device it works."""

    def __call__(self, examples: LabelledImages, split: Split) -> DeviceSplit: ...


@dataclass(frozen=True)
class Field:
    """One array of a split that is streamed: dtype and shape of a single example."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one example."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


class ExampleRanges(Protocol):
    """The examples of a split, in the order of the sequence. Pickles, and may cross a fork."""

    @property
    def fields(self) -> Sequence[Field]:
        """What is read of each example."""
        ...

    def __len__(self) -> int: ...

    def read_into(self, start: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Fill arrays [B, ...], one for each of `fields`, with the examples from `start` on."""
        ...


@dataclass(frozen=True)
class OnDevice:
    """The examples of a split that is streamed, and where batches of them shall be."""

    examples: ExampleRanges
    device: torch.device


class StreamPresenter(Protocol):
    """Makes a `Streamed` of the examples of a split."""

    def __call__(self, placed: OnDevice, split: Split) -> StreamedSplit: ...


@runtime_checkable
class StreamReader(Protocol):
    """Opens a data set that is read while it is trained on."""

    def check(self, folder: str) -> None:
        """Prove that it is there. Raises DataError naming the file and the cure."""
        ...

    def open(self, folder: str) -> Mapping[Split, ExampleRanges]:
        """Its splits; one that it has not is empty. Raises DataError."""
        ...


class EpochSampler:
    """Which epoch it is: Lightning calls `set_epoch` before it takes an iterator."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning at the start of an epoch, and after a resume."""
        self.epoch = epoch


def train_loader(
    examples: DeviceSplit | StreamedSplit,
    batch_size: int,
    seed: int,
    rank: int = 0,
    world_size: int = 1,
) -> TrainingBatches:
    """Shuffled batches of a split; batch_size is over all ranks."""
    if isinstance(examples, StreamedSplit):
        return examples.loader(batch_size, seed, rank, world_size)
    return TrainLoader(examples, batch_size, seed, rank, world_size)


class TrainLoader:
    """Shuffled batches. Global batch k is a function of (seed, epoch, k), and dealt to the ranks.

    batch_size: over all ranks.
    """

    def __init__(
        self, examples: DeviceSplit, batch_size: int, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.examples, self.batch_size, self.seed = examples, batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.sampler = EpochSampler()
        self.made_at_once = 1 if examples.device.type == "cpu" else MADE_AT_ONCE

    def __len__(self) -> int:
        return -(-len(self.examples) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        sizes = batch_sizes(len(self.examples), self.batch_size)
        return share_batches(self._batches(), sizes, self.rank, self.world_size)

    def _batches(self) -> Iterator[Batch]:
        epoch = self.sampler.epoch
        batch = self.examples.epoch(self.seed, epoch)
        order_N = epoch_order(len(self.examples), self.seed, epoch).to(self.examples.device)
        index = rank_batches(order_N, self.batch_size, self.rank, self.world_size)
        for first in range(0, len(index), self.made_at_once):
            yield from _make_batches(batch, index[first : first + self.made_at_once])


def share_batches(
    batches: Iterator[Batch], sizes: Sequence[int], rank: int, world_size: int
) -> Iterator[Batch]:
    """The batches of one rank, each with what it is of a global batch of so many examples."""
    if world_size == 1:
        return batches
    return (
        batch._replace(share=RankShare(size, rank, world_size))
        for batch, size in zip(batches, sizes, strict=True)
    )


def _make_batches(batch: Callable[[Tensor], Batch], index: list[Tensor]) -> list[Batch]:
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
        self, examples: EvaluatedSplit, batch_size: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.examples, self.batch_size = examples, batch_size
        self.rank, self.world_size = rank, world_size

    def __len__(self) -> int:
        return -(-len(self.examples) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        sizes = batch_sizes(len(self.examples), self.batch_size)
        return share_batches(self._batches(sizes), sizes, self.rank, self.world_size)

    def _batches(self, sizes: Sequence[int]) -> Iterator[Batch]:
        for number, size in enumerate(sizes):
            start = number * self.batch_size
            mine = RankShare(size, self.rank, self.world_size).neighbours
            yield self.examples.evaluated(slice(start + mine.start, start + mine.stop))
