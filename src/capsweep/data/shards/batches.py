"""Batches of a split that is read in stretches: groups of examples, shuffled, cut, made floats.

Shape letters: B batch, G examples of a group, L classes shown in one image, C H W image.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from capsweep.data.augment import to_unit
from capsweep.data.loader import EpochSampler
from capsweep.data.presented import Batch
from capsweep.data.shards import stretches
from capsweep.data.shards.order import Group, RankOrder, share
from capsweep.data.shards.stretches import Stretches
from capsweep.errors import ConfigError, DataError

Fields = dict[str, Tensor]


class _Groups(Dataset[Fields | DataError]):
    """Groups of a split, read and shuffled where they are asked for: here, or in a worker.

    What is wrong with a file is returned: a DataLoader wraps what is raised in a traceback.
    """

    def __init__(self, examples: Stretches) -> None:
        self.examples = examples
        self._room: dict[str, np.ndarray] = {}  # used again: new memory costs a fifth of reading

    def __getitem__(self, group: Group) -> Fields | DataError:
        try:
            return self._read(group)
        except DataError as error:
            return error

    def _read(self, group: Group) -> Fields:
        count, filled = len(group), 0
        if not self._room or len(self._room["labels"]) < count:
            self._room = stretches.empty(self.examples.fields, count)
        arrays = {name: array[:count] for name, array in self._room.items()}
        for start, stop in group.stretches:
            there = slice(filled, filled + stop - start)
            parts = {name: array[there] for name, array in arrays.items()}
            self.examples.read_into(start, parts)
            filled = there.stop
        shuffled_G = group.shuffle()
        return {n: torch.from_numpy(a).index_select(0, shuffled_G) for n, a in arrays.items()}


class _Asked:
    """Which groups a DataLoader shall bring next."""

    def __init__(self) -> None:
        self.groups: Iterator[Group] = iter(())

    def __iter__(self) -> Iterator[Group]:
        return self.groups


class StretchLoader:
    """Shuffled batches of one rank; each a function of (seed, epoch, rank, world size, position).

    An epoch of `epoch_examples` goes on in the pass over all examples where the last one ended.
    batch_size: over all ranks. workers: processes that read ahead, 0: this one reads. Iterating
    begins at the position that `load_state_dict` was given, without reading what is before it.
    Raises ConfigError naming batch_size where the ranks cannot share a batch.
    """

    def __init__(
        self,
        examples: Stretches,
        device: torch.device,
        batch_size: int,
        epoch_examples: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
    ) -> None:
        if batch_size % world_size:
            raise ConfigError(
                f"batch_size must be a multiple of the {world_size} devices that share a batch, "
                f"got {batch_size}"
            )
        if len(examples) < world_size:
            raise ConfigError(
                f"trainer: {world_size} devices, and {len(examples)} training examples; take fewer"
            )
        self.order = RankOrder(len(examples), seed, rank, world_size)
        self.device, self.batch_size, self.epoch_examples = device, batch_size, epoch_examples
        self.rank, self.world_size = rank, world_size
        self.sampler = EpochSampler()
        self._resumed: tuple[int, int] | None = None
        self._now = (0, 0)  # epoch, and batches of it that were handed out
        self._asked = _Asked()
        self._loader: DataLoader[Fields | DataError] = DataLoader(
            _Groups(examples),
            sampler=self._asked,
            batch_size=None,
            num_workers=workers,
            # A worker that is spawned inherits no open file, no thread and no GPU.
            multiprocessing_context="spawn" if workers else None,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
            # Its own: what torch draws for workers shall not move the network's random numbers.
            generator=torch.Generator(),
        )

    def __len__(self) -> int:
        full, rest = divmod(self.epoch_examples, self.batch_size)
        return full + (rest >= self.world_size)

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.sampler.epoch
        done = self._resumed[1] if self._resumed and self._resumed[0] == epoch else 0
        self._resumed = None
        size = self.batch_size // self.world_size
        of_epoch = share(self.epoch_examples, self.rank, self.world_size)
        counts = [min(size, of_epoch - first) for first in range(0, of_epoch, size)][: len(self)]
        begun = epoch * of_epoch + done * size
        for number, fields in enumerate(self._cut(begun, counts[done:]), start=done + 1):
            self._now = epoch, number
            yield batch_of(fields)

    def state_dict(self) -> dict[str, int]:
        """Where training is: the epoch, and how many batches of it were handed out."""
        epoch, position = self._now
        return {"epoch": epoch, "position": position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; of another epoch than that one nothing is left out."""
        self._resumed = self._now = int(state["epoch"]), int(state["position"])
        self.sampler.set_epoch(self._now[0])

    def _cut(self, position: int, counts: list[int]) -> Iterator[Fields]:
        """Batches of so many examples each, from a position on, as uint8 on the device."""
        wanted = list(self.order.groups(position, sum(counts)))
        self._asked.groups = iter([group for group, _ in wanted])
        held: Fields = {}
        parts = iter([part for _, part in wanted])
        read = iter(self._loader)
        for count in counts:
            batch, held = _taken(held, count)
            while (missing := count - _count(batch)) > 0:
                more, held = _taken(self._moved(next(read), next(parts)), missing)
                batch = _joined(batch, more)
            yield batch

    def _moved(self, fields: Fields | DataError, part: slice) -> Fields:
        """One copy for all batches of a group."""
        if isinstance(fields, DataError):
            raise fields
        return {n: t[part].to(self.device, non_blocking=True) for n, t in fields.items()}


def _count(fields: Fields) -> int:
    return len(fields["labels"]) if fields else 0


def _taken(fields: Fields, count: int) -> tuple[Fields, Fields]:
    """The first so many examples, and the others; both are views."""
    first = {name: tensor[:count] for name, tensor in fields.items()}
    return first, {name: tensor[count:] for name, tensor in fields.items()}


def _joined(batch: Fields, more: Fields) -> Fields:
    """What was left of one group, and the beginning of the next."""
    if not _count(batch):
        return more
    return {name: torch.cat([batch[name], more[name]]) for name in more}


def batch_of(fields: Mapping[str, Tensor]) -> Batch:
    """uint8 images, labels and, where they were read, the digits alone, as a network has them."""
    digits_BLCHW = fields.get("digits")
    targets_BLCHW = None if digits_BLCHW is None else to_unit(digits_BLCHW)
    return Batch(to_unit(fields["images"]), fields["labels"].long(), targets_BLCHW)
