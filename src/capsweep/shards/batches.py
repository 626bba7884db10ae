"""A split of shards as batches on the training device: groups of examples are read, shuffled, cut.

Shape letters: B batch, G examples of a group, K of them, L classes shown in one image, C H W image.
"""

import hashlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from capsweep.data.batches import (
    Batch,
    BatchLoader,
    EpochSampler,
    EvaluatedSplit,
    ExampleRanges,
    OnDevice,
    Split,
    to_unit,
)
from capsweep.errors import ConfigError, DataError
from capsweep.shards.groups import ExampleGroup, Fields, GroupDataset, PassOrder, read_range

AT_ONCE = 1000  # examples that are hashed at once


class ShardLoader(BatchLoader):
    """Shuffled batches, each a function of (seed, epoch, position).

    An epoch of `epoch_examples` goes on in the pass over all examples where the last one ended.
    workers: processes that read ahead, 0: this one reads.
    """

    def __init__(
        self,
        examples: ExampleRanges,
        device: torch.device,
        batch_size: int,
        epoch_examples: int,
        seed: int,
        workers: int = 0,
    ) -> None:
        super().__init__(epoch_examples, batch_size)
        self.order = PassOrder(len(examples), seed)
        self.device, self.sampler = device, EpochSampler()
        self._requests: list[
            tuple[ExampleGroup, slice]
        ] = []  # what the DataLoader shall bring next
        self._loader: DataLoader[Fields | DataError] = DataLoader(
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
        groups, rest = iter(self._loader), {}
        for start in range(0, self.count, self.batch_size):
            size = min(self.batch_size, self.count - start)
            batch, rest = _split_fields(rest, size)
            while (missing := size - _count_examples(batch)) > 0:
                more, rest = _split_fields(self._move_to_device(next(groups)), missing)
                batch = _join_fields(batch, more)
            yield to_batch(batch)

    def _move_to_device(self, fields: Fields | DataError) -> Fields:
        """Move a group with one copy for all its batches."""
        if isinstance(fields, DataError):
            raise fields
        return {name: t.to(self.device, non_blocking=True) for name, t in fields.items()}


def _count_examples(fields: Fields) -> int:
    return len(fields["labels"]) if fields else 0


def _split_fields(fields: Fields, count: int) -> tuple[Fields, Fields]:
    """Return the first so many examples, and the others; both are views."""
    first = {name: tensor[:count] for name, tensor in fields.items()}
    return first, {name: tensor[count:] for name, tensor in fields.items()}


def _join_fields(batch: Fields, more: Fields) -> Fields:
    """Return what was left of one group, and the beginning of the next."""
    if not _count_examples(batch):
        return more
    return {name: torch.cat([batch[name], more[name]]) for name in more}


def to_batch(fields: Mapping[str, Tensor]) -> Batch:
    """Make a batch of uint8 images, labels and, where they were read, the digits alone."""
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
        placed: OnDevice,
        split: Split,
        *,
        epoch_examples: int,
        test_examples: int,
        workers: int,
    ) -> None:
        examples = placed.examples
        if split == "test" and test_examples > len(examples):
            raise ConfigError(
                f"dataset.batches.test_examples must be at most the {len(examples)} test examples "
                f"of the data set, got {test_examples}"
            )
        counts = {"train": epoch_examples, "test": test_examples, "validation": len(examples)}
        self.examples, self.device, self.workers = examples, placed.device, workers
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
