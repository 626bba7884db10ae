"""Batches of a data set that is in the memory of the training device.

A batch is made by a few tensor operations, without worker processes. The order of the examples
depends only on (seed, epoch), so that a resumed run sees the same batches as an uninterrupted run.

Shape letters: B batch, N examples, C H W image.
"""

import gc
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from capsweep.errors import is_short_of_memory
from capsweep.runtime import terminal

Split = Literal["train", "validation", "test"]
# Number of batches that TrainLoader makes together on an accelerator, because there launching an
# operation takes longer than running it on one batch. On a CPU, batches are made one by one,
# because a single batch fits into the cache.
MADE_AT_ONCE = 16
TRAINING_BATCHES = 2  # at first, a part of an evaluation is as large as this many training batches

Result = TypeVar("Result")


def seed_of(*purpose: int | str) -> int:
    """Hash integers and strings, such as (seed, "order", epoch), to a 63-bit seed.

    Args:
        *purpose: What the random numbers are for. Equal values give equal seeds on every machine.

    Returns:
        An integer in 0 .. 2**63 - 1, from the first 64 bits of a sha256.
    """
    text = "/".join(str(part) for part in purpose)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_of(*purpose: int | str) -> torch.Generator:
    """Create a CPU generator that is seeded by `seed_of`.

    Its numbers are the same on every machine, and do not depend on the training device.

    Args:
        *purpose: What the random numbers are for, such as (seed, "order", epoch).
    """
    return torch.Generator().manual_seed(seed_of(*purpose))


def draw_epoch_order(num_examples: int, seed: int, epoch: int) -> Tensor:
    """Draw the order in which an epoch shows its examples.

    Args:
        num_examples: N, the number of examples of the split.
        seed: Seed of the cell.
        epoch: Index of the epoch, from 0 on.

    Returns:
        A permutation of 0 .. N - 1, int64 [N], on the CPU.
    """
    return torch.randperm(num_examples, generator=generator_of(seed, "order", epoch))


class Batch(NamedTuple):
    """A batch of examples on the training device.

    Attributes:
        images_BCHW: float32 images [B, C, H, W], as the network sees them.
        labels: int64 classes, [B]; or [B, L] if each image shows L digits.
        targets_BLCHW: The images that a decoder is to reconstruct, one for each label: float32
            [B, L, C, H, W] in 0..1. None if a decoder is to reconstruct `images_BCHW`.
    """

    images_BCHW: Tensor
    labels: Tensor
    targets_BLCHW: Tensor | None = None

    def select(self, part: slice) -> "Batch":
        """Return a part of the batch, or the batch itself if the part covers all of it.

        Args:
            part: Slice of the batch, with a start and a stop.
        """
        if part.start == 0 and part.stop >= len(self.labels):
            return self
        targets_BLCHW = None if self.targets_BLCHW is None else self.targets_BLCHW[part]
        return Batch(self.images_BCHW[part], self.labels[part], targets_BLCHW)


class EvaluatedSplit(ABC):
    """A split of a data set, which provides batches for training and evaluation.

    Attributes:
        device: The device on which the batches are.
    """

    device: torch.device

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def evaluation_batch(self, part: slice) -> Batch:
        """Return examples in their fixed order, without random changes, for validation and test.

        Args:
            part: Indices of the examples in the split.
        """

    @abstractmethod
    def make_loader(self, batch_size: int, seed: int) -> "BatchLoader":
        """Build the loader of shuffled training batches.

        Args:
            batch_size: Examples per batch.
            seed: Seed of the cell, which decides the order of the examples.
        """

    def fingerprint(self) -> str | None:
        """Return the sha256 of the examples if they are composed of source images, else None.

        Examples that are not composed are identified by the declared hashes of the data set.
        """
        return None


class DeviceSplit(EvaluatedSplit):
    """A split in the memory of the training device. Any examples of the split can form a batch."""

    @abstractmethod
    def prepare_epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """Draw the random changes of a training epoch, and return a function that makes batches.

        Args:
            seed: Seed of the cell.
            epoch: Index of the epoch, from 0 on.

        Returns:
            A function that takes indices of examples in the split, int64 [B], and returns the batch
            of these examples.
        """

    def make_loader(self, batch_size: int, seed: int) -> "TrainLoader":
        """Build the loader of shuffled training batches; see `EvaluatedSplit.make_loader`."""
        return TrainLoader(self, batch_size, seed)


# Builds a split from the examples that `to(device)` returned, and from the name of the split.
Presenter = Callable[[Any, Split], EvaluatedSplit]


class EpochSampler:
    """An object that stores the index of the current epoch.

    For Lightning, this object is the sampler of a loader. So Lightning calls `set_epoch` before
    each epoch.
    """

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the index of the epoch; Lightning calls this when an epoch starts or is resumed.

        Args:
            epoch: Index of the epoch, from 0 on.
        """
        self.epoch = epoch


class BatchLoader(ABC):
    """An iterable of batches for Lightning; the last batch may be smaller.

    Args:
        count: Examples in an epoch.
        batch_size: Examples per batch.
    """

    def __init__(self, count: int, batch_size: int) -> None:
        self.count, self.batch_size = count, batch_size

    def __len__(self) -> int:
        return -(-self.count // self.batch_size)

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]: ...


class EvaluationLoader(BatchLoader):
    """Batches of all examples of a split in their fixed order, for validation and test.

    Args:
        examples: The split.
        batch_size: Examples per batch.
    """

    def __init__(self, examples: EvaluatedSplit, batch_size: int) -> None:
        super().__init__(len(examples), batch_size)
        self.examples = examples

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, self.count, self.batch_size):
            yield self.examples.evaluation_batch(slice(start, start + self.batch_size))


class EvaluationParts:
    """An evaluation of batches in parts that fit into memory.

    At first, a part has at most twice as many examples as a training batch. So a part needs at most
    about as much memory as a training step, since an evaluation keeps no activations for a backward
    pass. When memory runs out, the size of parts is halved. This size changes results only by
    rounding.

    Args:
        batch_size: Examples in a training batch.
    """

    def __init__(self, batch_size: int) -> None:
        self.examples = max(1, TRAINING_BATCHES * batch_size)

    def evaluate(
        self, batch: Batch, compute: Callable[[Batch], Result]
    ) -> Iterator[tuple[Batch, Result]]:
        """Yield the parts of a batch in order, each with the result of `compute`.

        When memory runs out, a message is printed, and the size of the parts is halved from the
        failed part on.

        Args:
            batch: The examples to evaluate.
            compute: Evaluates one part.

        Raises:
            Exception: Any error of `compute`. If memory runs out while a part has two or more
                examples, no error is raised.
        """
        start, count = 0, len(batch.labels)
        while start < count:
            # Parts of nearly equal size let torch reuse their memory.
            even = -(-count // -(-count // self.examples))
            part = batch.select(slice(start, start + even))
            try:
                result = compute(part)
            except (RuntimeError, MemoryError) as error:
                if len(part.labels) == 1 or not is_short_of_memory(error):
                    raise
            else:
                start += len(part.labels)
                yield part, result
                continue
            # Called outside of the except clause: there, the error's traceback keeps tensors alive.
            self._halve(len(part.labels))

    def _halve(self, examples: int) -> None:
        self.examples = examples // 2
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        terminal.print_aside(
            f"memory ran out while {examples} examples were evaluated together; from now on "
            f"{self.examples} are"
        )


class TrainLoader(BatchLoader):
    """Shuffled training batches; batch k of an epoch depends only on (seed, epoch, k).

    Args:
        examples: The split, on the training device.
        batch_size: Examples per batch.
        seed: Seed of the cell.
    """

    def __init__(self, examples: DeviceSplit, batch_size: int, seed: int) -> None:
        super().__init__(len(examples), batch_size)
        self.examples, self.seed, self.sampler = examples, seed, EpochSampler()
        self.made_at_once = 1 if examples.device.type == "cpu" else MADE_AT_ONCE

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.sampler.epoch
        make_batch = self.examples.prepare_epoch(self.seed, epoch)
        order_N = draw_epoch_order(self.count, self.seed, epoch).to(self.examples.device)
        at_once = self.made_at_once * self.batch_size
        for first in range(0, self.count, at_once):
            made = make_batch(order_N[first : first + at_once])
            for start in range(0, len(made.labels), self.batch_size):
                yield made.select(slice(start, start + self.batch_size))


def to_unit(images: Tensor) -> Tensor:
    """Scale intensities to 0..1.

    Args:
        images: uint8 intensities 0..255, of any shape.

    Returns:
        float32 intensities in 0..1, of the same shape.
    """
    return images.to(torch.float32).div_(255)
