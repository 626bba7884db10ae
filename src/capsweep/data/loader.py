"""Batches from a data set that lives on the training device.

Shape letters: B batch, N examples, C H W image.
"""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from capsweep.data.augment import draw_offsets, shift_windows, to_unit
from capsweep.data.images import LabelledImages
from capsweep.data.order import epoch_order, generator_of, rank_batches


class Batch(NamedTuple):
    """float32 images [B, C, H, W] in 0..1 and int64 labels [B], on the training device."""

    images_BCHW: Tensor
    labels_B: Tensor


class EpochSampler:
    """Which epoch it is: Lightning calls `set_epoch` before it takes an iterator."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning at the start of an epoch, and after a resume."""
        self.epoch = epoch


class TrainLoader:
    """Shuffled, shifted batches; each a function of (seed, epoch, rank, world size, position)."""

    def __init__(
        self,
        examples: LabelledImages,
        batch_size: int,
        shift: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.labels_N = examples.labels_N
        self.windows = shift_windows(examples.images_NCHW, shift)
        self.batch_size, self.shift, self.seed = batch_size, shift, seed
        self.rank, self.world_size = rank, world_size
        self.sampler = EpochSampler()

    def __len__(self) -> int:
        full, rest = divmod(len(self.labels_N), self.batch_size)
        return full + (rest >= self.world_size)

    def __iter__(self) -> Iterator[Batch]:
        epoch, device = self.sampler.epoch, self.labels_N.device
        num_examples = len(self.labels_N)
        # Drawn on the CPU, moved once per epoch: the same numbers on every device, no copy per
        # step.
        order_N = epoch_order(num_examples, self.seed, epoch).to(device)
        generator = generator_of(self.seed, "shift", epoch)
        offsets_N2 = draw_offsets(num_examples, self.shift, generator).to(device)
        for index_B in rank_batches(order_N, self.batch_size, self.rank, self.world_size):
            dy_B, dx_B = offsets_N2[index_B].unbind(1)
            images_BCHW = self.windows[index_B, :, dy_B, dx_B]
            yield Batch(to_unit(images_BCHW), self.labels_N[index_B])


class EvaluationLoader:
    """All examples in order, unshifted; rank r of R takes every R-th batch."""

    def __init__(
        self, examples: LabelledImages, batch_size: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.examples, self.batch_size = examples, batch_size
        self.rank, self.world_size = rank, world_size

    def __len__(self) -> int:
        return len(self._starts())

    def __iter__(self) -> Iterator[Batch]:
        for start in self._starts():
            part = slice(start, start + self.batch_size)
            images_BCHW = to_unit(self.examples.images_NCHW[part])
            yield Batch(images_BCHW, self.examples.labels_N[part])

    def _starts(self) -> range:
        step = self.batch_size * self.world_size
        return range(self.rank * self.batch_size, len(self.examples), step)
