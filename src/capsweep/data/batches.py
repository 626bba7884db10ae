"""Batches from a data set that lives on the training device, by whole-batch tensor operations.

Their order is a function of (seed, epoch), and has no state: a resumed run sees what an unbroken
one sees.

Shape letters: B batch, N examples, C H W image.
"""

import gc
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from capsweep.errors import ConfigError, is_short_of_memory
from capsweep.runtime import terminal

Split = Literal["train", "validation", "test"]
# On an accelerator starting an operation takes longer than its work on one batch does, so several
# batches are made by the same operations. On a CPU a single batch stays in the cache.
MADE_AT_ONCE = 16
TRAINING_BATCHES = 2  # that are evaluated at once

Result = TypeVar("Result")


def seed_of(*place: int | str) -> int:
    """A 63-bit seed for a place such as (seed, "order", epoch): equal places, equal seeds."""
    text = "/".join(str(part) for part in place)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_of(*place: int | str) -> torch.Generator:
    """A CPU generator for a place, the same on every device and machine."""
    return torch.Generator().manual_seed(seed_of(*place))


def epoch_order(num_examples: int, seed: int, epoch: int) -> Tensor:
    """The permutation [N] of the examples in one epoch."""
    return torch.randperm(num_examples, generator=generator_of(seed, "order", epoch))


class Batch(NamedTuple):
    """float32 images [B, C, H, W] and int64 labels, [B] or [B, L], on the training device.

    targets_BLCHW: what a decoder shall draw for each label, in 0..1; None: the images themselves.
    """

    images_BCHW: Tensor
    labels: Tensor
    targets_BLCHW: Tensor | None = None

    def select(self, part: slice) -> "Batch":
        """Return the examples of a part; the batch itself where it has no more."""
        if part.start == 0 and part.stop >= len(self.labels):
            return self
        targets_BLCHW = None if self.targets_BLCHW is None else self.targets_BLCHW[part]
        return Batch(self.images_BCHW[part], self.labels[part], targets_BLCHW)


class EvaluatedSplit(ABC):
    """One split, whose batches are on the training device `device`."""

    device: torch.device

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def evaluation_batch(self, part: slice) -> Batch:
        """Examples in order, as they are validated and tested: the same every time."""

    @abstractmethod
    def make_loader(self, batch_size: int, seed: int) -> "BatchLoader":
        """Return its shuffled batches."""

    def fingerprint(self) -> str | None:
        """Return the identity of examples that no official file holds; None where files do."""
        return None


class DeviceSplit(EvaluatedSplit):
    """A split that lies on the training device, of which any examples can be asked for."""

    @abstractmethod
    def prepare_epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """What makes batches of examples [B] in a training epoch: a function of (seed, epoch)."""

    def make_loader(self, batch_size: int, seed: int) -> "TrainLoader":
        """See EvaluatedSplit."""
        return TrainLoader(self, batch_size, seed)


# Makes a split of examples that are on a device, by their `to`.
Presenter = Callable[[Any, Split], EvaluatedSplit]


class EpochSampler:
    """Which epoch it is: Lightning calls `set_epoch` before it takes an iterator."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning at the start of an epoch, and after a resume."""
        self.epoch = epoch


class BatchLoader(ABC):
    """Batches as Lightning takes them; the last one is what is left."""

    def __init__(self, count: int, batch_size: int) -> None:
        self.count, self.batch_size = count, batch_size

    def __len__(self) -> int:
        return -(-self.count // self.batch_size)

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]: ...


class EvaluationLoader(BatchLoader):
    """All examples in order, as they are tested."""

    def __init__(self, examples: EvaluatedSplit, batch_size: int) -> None:
        super().__init__(len(examples), batch_size)
        self.examples = examples

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, self.count, self.batch_size):
            yield self.examples.evaluation_batch(slice(start, start + self.batch_size))


class EvaluationParts:
    """Evaluates batches in parts that fit into memory: smaller ones from when it first runs out.

    An evaluation keeps no activations for a backward pass, so that twice as many examples as a
    training step has need about as much memory. Results do not depend on the parts but for
    rounding. batch_size: of a training step.
    """

    def __init__(self, batch_size: int) -> None:
        self.examples = max(1, TRAINING_BATCHES * batch_size)

    def evaluate(
        self, batch: Batch, compute: Callable[[Batch], Result]
    ) -> Iterator[tuple[Batch, Result]]:
        """Yield the parts of a batch in order, each with what `compute` returns for it.

        Where memory runs out, the part is halved, and a line says so; all later parts are as small.
        Raises what `compute` raises, also for lack of memory where a part is one example.
        """
        start, count = 0, len(batch.labels)
        while start < count:
            even = -(-count // -(-count // self.examples))  # few sizes: their memory is used again
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
            self._halve(len(part.labels))  # when the traceback holds no tensors any more

    def _halve(self, examples: int) -> None:
        self.examples = examples // 2
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        terminal.print_aside(
            f"memory ran out while {examples} examples were evaluated at once; from now on "
            f"{self.examples} are"
        )


class TrainLoader(BatchLoader):
    """Shuffled batches; batch k is a function of (seed, epoch, k)."""

    def __init__(self, examples: DeviceSplit, batch_size: int, seed: int) -> None:
        super().__init__(len(examples), batch_size)
        self.examples, self.seed, self.sampler = examples, seed, EpochSampler()
        self.made_at_once = 1 if examples.device.type == "cpu" else MADE_AT_ONCE

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.sampler.epoch
        make_batch = self.examples.prepare_epoch(self.seed, epoch)
        order_N = epoch_order(self.count, self.seed, epoch).to(self.examples.device)
        at_once = self.made_at_once * self.batch_size
        for first in range(0, self.count, at_once):
            made = make_batch(order_N[first : first + at_once])
            for start in range(0, len(made.labels), self.batch_size):
                yield made.select(slice(start, start + self.batch_size))


def shift_windows(images_NCHW: Tensor, shift: int, canvas: int | None = None) -> Tensor:
    """All (2 shift + 1)^2 integer shifts of every image, zero fill, as a view on one padded copy.

    canvas: pixels of a square in whose middle the images lie, None: theirs. Returns
    [N, C, 2 shift + 1, 2 shift + 1, H, W]; the image moved down by dy and right by dx is at
    [n, :, shift - dy, shift - dx]. Raises ConfigError when the images have no room.
    """
    count, channels, height, width = images_NCHW.shape
    rows, columns = (height, width) if canvas is None else (canvas, canvas)
    if height > rows or width > columns:
        raise ConfigError(f"a canvas of {canvas} pixels has no room for images of {height}x{width}")
    above, left = (rows - height) // 2, (columns - width) // 2
    # Zeros right of a row are those left of the next one, and so with rows and images: where the
    # margin is as wide as the shift, as in MultiMNIST, a window is one stretch of memory.
    row, plane_rows = columns - left + shift, rows - above + shift
    plane = plane_rows * row
    before = (above + shift) * row + left + shift
    side = 2 * shift + 1
    # The last row of the last window is there in full too, as `windows_at` reads it.
    after = max(row - columns, 0)
    padded_E = images_NCHW.new_zeros(before + count * channels * plane + after)
    planes_E = padded_E[before : len(padded_E) - after]
    planes_E.view(count, channels, plane_rows, row)[..., :height, :width] = images_NCHW
    return padded_E.as_strided(
        (count, channels, side, side, rows, columns), (channels * plane, plane, row, 1, row, 1)
    )


def window_places(windows: Tensor, index: Tensor, offsets: Tensor) -> Tensor:
    """Where in memory the windows of images `index` [...] begin, by `offsets` [..., 2] of each.

    windows: [N, C, rows, columns, H, W], of which an offset names row and column.
    """
    image, _, row, column, _, _ = windows.stride()
    return index * image + offsets[..., 0] * row + offsets[..., 1] * column


def windows_at(windows: Tensor, place_B: Tensor) -> Tensor:
    """The uint8 windows [B, C, H, W] at `places`, copied: `windows[n, :, row, column]` for every n.

    Reads a whole window at an address; indexing by three tensors looks each row of pixels up and
    takes ten times as long. What is returned may lie in memory with something between its rows.
    """
    count, channels, rows, columns, height, width = windows.shape
    image, plane, row, column, down, right = windows.stride()
    last = (count - 1) * image + (rows - 1) * row + (columns - 1) * column
    # One stretch of rows, where all of it is in memory, is copied three times as fast as they are
    # one by one.
    end = windows.storage_offset() + last + (channels - 1) * plane + height * down
    has_stretch = right == 1 and down >= width and end <= windows.untyped_storage().nbytes()
    everywhere = windows.as_strided(
        (max(last + 1, 0), channels, height, down if has_stretch else width),
        (1, plane, down, right),
    )
    return everywhere.index_select(0, place_B)[..., :width]


def to_unit(images: Tensor) -> Tensor:
    """uint8 0..255 to float32 0..1."""
    return images.to(torch.float32).div_(255)
