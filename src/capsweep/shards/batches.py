"""Batches of a split that is read in stretches: groups of examples, shuffled, cut, made floats.

Shape letters: B batch, G examples of a group, L classes shown in one image, C H W image.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from capsweep.data.batches import Batch, EpochSampler, ExampleRanges, share_batches, to_unit
from capsweep.data.randomness import batch_sizes, count_share
from capsweep.errors import DataError
from capsweep.shards import ranges
from capsweep.shards.pass_order import Group, PassOrder
from capsweep.shards.ranges import ComposedRanges

Fields = dict[str, Tensor]


class GroupRequest(NamedTuple):
    """A group, and which of its shuffled examples [K] are wanted; None: all."""

    group: Group
    rows_K: Tensor | None = None


class _GroupDataset(Dataset[Fields | DataError]):
    """Groups of a split, read and shuffled where they are asked for: here, or in a worker.

    Of a group that several ranks share each reads all, and keeps its own; what is composed is
    composed for its own examples alone.
    What is wrong with a file is returned: a DataLoader wraps what is raised in a traceback.
    """

    def __init__(self, examples: ExampleRanges) -> None:
        self.examples = examples
        self._room: dict[str, np.ndarray] = {}  # used again: new memory costs a fifth of reading

    def __getitem__(self, wanted: GroupRequest) -> Fields | DataError:
        group, rows_K = wanted
        shuffled_G = group.permutation()
        try:
            if rows_K is None:
                return self._read_group(group, shuffled_G)
            if isinstance(self.examples, ComposedRanges):
                return _compose(self.examples, group.members()[shuffled_G[rows_K]])
            return self._read_group(group, shuffled_G[rows_K])
        except DataError as error:
            return error

    def _read_group(self, group: Group, places_K: Tensor) -> Fields:
        count, filled = len(group), 0
        if not self._room or len(self._room["labels"]) < count:
            self._room = ranges.make_room(self.examples.fields, count)
        arrays = {name: array[:count] for name, array in self._room.items()}
        for start, stop in group.stretches:
            there = slice(filled, filled + stop - start)
            parts = {name: array[there] for name, array in arrays.items()}
            self.examples.read_into(start, parts)
            filled = there.stop
        return {n: torch.from_numpy(a).index_select(0, places_K) for n, a in arrays.items()}


def _compose(examples: ComposedRanges, k_K: Tensor) -> Fields:
    arrays = ranges.make_room(examples.fields, len(k_K))
    examples.compose_into(k_K, arrays)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


class _RequestQueue:
    """Which groups a DataLoader shall bring next."""

    def __init__(self) -> None:
        self.groups: Iterator[GroupRequest] = iter(())

    def __iter__(self) -> Iterator[GroupRequest]:
        return self.groups


class ShardLoader:
    """Shuffled batches of one rank: its part of global batches, each a function of (seed, epoch,
    position).

    An epoch of `epoch_examples` goes on in the pass over all examples where the last one ended.
    batch_size: over all ranks. workers: processes that read ahead, 0: this one reads. Iterating
    begins at the position that `load_state_dict` was given, without reading what is before it. A
    position counts global batches, so that another number of ranks goes on from it.
    """

    def __init__(
        self,
        examples: ExampleRanges,
        device: torch.device,
        batch_size: int,
        epoch_examples: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
    ) -> None:
        self.order = PassOrder(len(examples), seed)
        self.device, self.batch_size, self.epoch_examples = device, batch_size, epoch_examples
        self.rank, self.world_size = rank, world_size
        self.sampler = EpochSampler()
        self._resumed: tuple[int, int] | None = None
        self._now = (0, 0)  # epoch, and batches of it that were handed out
        self._asked = _RequestQueue()
        self._loader: DataLoader[Fields | DataError] = DataLoader(
            _GroupDataset(examples),
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
        return -(-self.epoch_examples // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.sampler.epoch
        done = self._resumed[1] if self._resumed and self._resumed[0] == epoch else 0
        self._resumed = None
        sizes = batch_sizes(self.epoch_examples, self.batch_size)[done:]
        begun = epoch * self.epoch_examples + done * self.batch_size
        batches = self._number_batches(epoch, done, begun, sizes)
        yield from share_batches(batches, sizes, self.rank, self.world_size)

    def _number_batches(
        self, epoch: int, done: int, begun: int, sizes: list[int]
    ) -> Iterator[Batch]:
        for number, fields in enumerate(self._cut_batches(begun, sizes), start=done + 1):
            self._now = epoch, number
            yield to_batch(fields)

    def state_dict(self) -> dict[str, int]:
        """Where training is: the epoch, and how many batches of it were handed out."""
        epoch, position = self._now
        return {"epoch": epoch, "position": position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; of another epoch than that one nothing is left out."""
        self._resumed = self._now = int(state["epoch"]), int(state["position"])
        self.sampler.set_epoch(self._now[0])

    def _cut_batches(self, position: int, sizes: list[int]) -> Iterator[Fields]:
        """This rank's part of global batches of so many examples, from a position on, as uint8 on
        the device.
        """
        wanted = list(self._requests(position, sizes))
        self._asked.groups = iter([group for group, _ in wanted])
        held: Fields = {}
        parts = iter([part for _, part in wanted])
        read = iter(self._loader)
        for size in sizes:
            count = max(1, count_share(size, self.rank, self.world_size))
            batch, held = _split_off(held, count)
            while (missing := count - _count_examples(batch)) > 0:
                more, held = _split_off(self._move_to_device(next(read), next(parts)), missing)
                batch = _concatenate(batch, more)
            yield batch

    def _requests(self, position: int, sizes: list[int]) -> Iterator[tuple[GroupRequest, slice]]:
        """The groups of so many global batches, and which part of what is read of each is used."""
        passed = 0
        for group, part in self.order.groups_from(position, sum(sizes)):
            if self.world_size == 1:
                yield GroupRequest(group), part
                continue
            place_P = torch.arange(passed, passed + part.stop - part.start)
            passed += len(place_P)
            rows_K = part.start + self._is_mine(place_P, sizes).nonzero().flatten()
            if len(rows_K):
                yield GroupRequest(group, rows_K), slice(None)

    def _is_mine(self, place_P: Tensor, sizes: list[int]) -> Tensor:
        """Whether a place, counted from the first of these batches on, is this rank's."""
        in_batch_P = place_P % self.batch_size
        is_last_P = place_P // self.batch_size == len(sizes) - 1
        size_P = torch.where(is_last_P, sizes[-1], self.batch_size)
        is_stand_in_P = (in_batch_P == 0) & (size_P <= self.rank)
        return is_stand_in_P | (in_batch_P % self.world_size == self.rank)

    def _move_to_device(self, fields: Fields | DataError, part: slice) -> Fields:
        """One copy for all batches of a group."""
        if isinstance(fields, DataError):
            raise fields
        return {n: t[part].to(self.device, non_blocking=True) for n, t in fields.items()}


def _count_examples(fields: Fields) -> int:
    return len(fields["labels"]) if fields else 0


def _split_off(fields: Fields, count: int) -> tuple[Fields, Fields]:
    """The first so many examples, and the others; both are views."""
    first = {name: tensor[:count] for name, tensor in fields.items()}
    return first, {name: tensor[count:] for name, tensor in fields.items()}


def _concatenate(batch: Fields, more: Fields) -> Fields:
    """What was left of one group, and the beginning of the next."""
    if not _count_examples(batch):
        return more
    return {name: torch.cat([batch[name], more[name]]) for name in more}


def to_batch(fields: Mapping[str, Tensor]) -> Batch:
    """uint8 images, labels and, where they were read, the digits alone, as a network has them."""
    digits_BLCHW = fields.get("digits")
    targets_BLCHW = None if digits_BLCHW is None else to_unit(digits_BLCHW)
    return Batch(to_unit(fields["images"]), fields["labels"].long(), targets_BLCHW)
