"""A split of shards as batches on the training device.

Shape letters: B batch.
"""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch

from capsweep.data.batches import Batch, OnDevice, Split
from capsweep.errors import ConfigError, DataError
from capsweep.shards import ranges
from capsweep.shards.batches import ShardLoader, to_batch

AT_ONCE = 1000  # examples


class StretchImages:
    """Images that are shown as they were stored: nothing is drawn for them when they are read.

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
        if split == "train" and not len(examples):
            raise DataError("the data set of shards has no training examples; make another")
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

    def make_loader(
        self, batch_size: int, seed: int, rank: int = 0, world_size: int = 1
    ) -> ShardLoader:
        """Its shuffled batches: those of a training epoch."""
        return ShardLoader(
            self.examples,
            self.device,
            batch_size,
            len(self),
            seed,
            rank,
            world_size,
            self.workers,
        )

    def evaluation_batch(self, part: slice) -> Batch:
        """Examples in order."""
        start, stop, _ = part.indices(len(self))
        read = self._read_range(start, max(start, stop))
        return to_batch({n: torch.from_numpy(array).to(self.device) for n, array in read.items()})

    def fingerprint(self) -> str:
        """sha256 of all evaluated images and labels; as of pairs composed on the fly."""
        digest = hashlib.sha256()
        for start in range(0, len(self), AT_ONCE):
            read = self._read_range(start, min(start + AT_ONCE, len(self)))
            digest.update(read["images"].tobytes())
            digest.update(read["labels"].tobytes())
        return digest.hexdigest()

    def _read_range(self, start: int, stop: int) -> Mapping[str, np.ndarray]:
        return ranges.read_range(self.examples, start, stop)
