"""The order of examples, and every other random choice of an epoch, as a function of its place.

Nothing here keeps state, so a resumed run sees what an unbroken one sees.
"""

import hashlib
from typing import NamedTuple

import torch
from torch import Tensor


def seed_of(*place: int | str) -> int:
    """A 63-bit seed for a place such as (seed, "order", epoch): equal places, equal seeds."""
    text = "/".join(str(part) for part in place)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_of(*place: int | str) -> torch.Generator:
    """A CPU generator for a place, the same on every device and machine."""
    return torch.Generator().manual_seed(seed_of(*place))


def epoch_order(num_examples: int, seed: int, epoch: int) -> Tensor:
    """The permutation [N] of the examples in one epoch, over all ranks."""
    return torch.randperm(num_examples, generator=generator_of(seed, "order", epoch))


class Dealt(NamedTuple):
    """What one rank of several has of a global batch of so many examples.

    Every rank takes every step. One for which a batch has no example is shown its first, as a
    stand-in whose weight is 0, and which is counted nowhere.
    """

    examples: int
    rank: int
    ranks: int

    @property
    def mine(self) -> int:
        """Examples of this rank, without a stand-in."""
        return share(self.examples, self.rank, self.ranks)

    @property
    def rows(self) -> slice:
        """Which of a global training batch: they are dealt in turn."""
        return slice(self.rank, self.examples, self.ranks) if self.mine else slice(0, 1)

    @property
    def stretch(self) -> slice:
        """Which of a global batch that is evaluated: neighbours, since those are read at once."""
        if not self.mine:
            return slice(0, 1)
        each, rest = divmod(self.examples, self.ranks)
        first = self.rank * each + min(self.rank, rest)
        return slice(first, first + self.mine)

    @property
    def weight(self) -> float:
        """What its mean counts, so that the mean over ranks is the mean over the global batch."""
        return self.mine * self.ranks / self.examples


def share(examples: int, rank: int, ranks: int) -> int:
    """How many of so many examples belong to a rank; those of two ranks differ by at most one."""
    return examples // ranks + (rank < examples % ranks)


def batch_sizes(examples: int, batch_size: int) -> list[int]:
    """Of the global batches of so many examples: the last is what is left."""
    return [min(batch_size, examples - first) for first in range(0, examples, batch_size)]


def rank_batches(order_N: Tensor, batch_size: int, rank: int, world_size: int) -> list[Tensor]:
    """The batches of one rank: global batch k is order[k * batch_size : (k + 1) * batch_size],
    dealt to the ranks in turn. Over all ranks every example comes exactly once, but for stand-ins:
    see `Dealt`.
    """
    batches = order_N.split(batch_size) if len(order_N) else ()
    return [batch[Dealt(len(batch), rank, world_size).rows] for batch in batches]
