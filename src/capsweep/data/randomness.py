"""The order of examples, and every other random choice of an epoch, as a function of its place.

Nothing here keeps state, so a resumed run sees what an unbroken one sees.
"""

import hashlib
from typing import NamedTuple

import torch
from torch import Tensor

INCREMENT = 0x9E3779B97F4A7C15
FIRST_FACTOR, SECOND_FACTOR = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
BITS = 40  # of a word, that a choice is made from; a bound may have up to 23


def draw_words(key: int, counter: Tensor) -> Tensor:
    """The 64 bits at each position of the sequence `key`, as int64 of the shape of `counter`."""
    z = counter * _to_signed(INCREMENT) + _to_signed(INCREMENT + key)
    for bits, factor in ((30, FIRST_FACTOR), (27, SECOND_FACTOR)):
        z ^= _shift_right(z, bits)
        z *= _to_signed(factor)
    return z.bitwise_xor_(_shift_right(z, 31))


def draw_bits(key: int, counter: Tensor) -> Tensor:
    """The BITS bits at each position that a choice is made from, for `choose_integers`."""
    return _shift_right(draw_words(key, counter), 64 - BITS)


def choose_integers(bound: Tensor | int, draw: Tensor) -> Tensor:
    """The whole number in 0 .. bound - 1 that each of `draw` stands for, int64; bound < 2**23.

    Each is the integer part of bound * u for u of 40 bits, so no value is favoured by more than
    bound / 2**40.
    """
    return (draw * bound).bitwise_right_shift_(BITS)


def draw_integers(bound: Tensor | int, key: int, counter: Tensor) -> Tensor:
    """Whole numbers uniform in 0 .. bound - 1, int64, one for each position; bound < 2**23."""
    return choose_integers(bound, draw_bits(key, counter))


def _to_signed(value: int) -> int:
    """The int64 of the same 64 bits."""
    return (value + 2**63) % 2**64 - 2**63


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """A logical shift; that of int64 would repeat the sign."""
    return (z >> bits).bitwise_and_(2 ** (64 - bits) - 1)


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


class RankShare(NamedTuple):
    """What one rank of several has of a global batch of so many examples.

    Every rank takes every step. One for which a batch has no example is shown its first, as a
    stand-in whose weight is 0, and which is counted nowhere.
    """

    examples: int
    rank: int
    ranks: int

    @property
    def num_examples(self) -> int:
        """Examples of this rank, without a stand-in."""
        return count_share(self.examples, self.rank, self.ranks)

    @property
    def training_rows(self) -> slice:
        """Which of a global training batch: they are dealt in turn."""
        return slice(self.rank, self.examples, self.ranks) if self.num_examples else slice(0, 1)

    @property
    def evaluation_rows(self) -> slice:
        """Which of a global batch that is evaluated: neighbours, since those are read at once."""
        if not self.num_examples:
            return slice(0, 1)
        each, rest = divmod(self.examples, self.ranks)
        first = self.rank * each + min(self.rank, rest)
        return slice(first, first + self.num_examples)

    @property
    def weight(self) -> float:
        """What its mean counts, so that the mean over ranks is the mean over the global batch."""
        return self.num_examples * self.ranks / self.examples


def count_share(examples: int, rank: int, ranks: int) -> int:
    """How many of so many examples belong to a rank; those of two ranks differ by at most one."""
    return examples // ranks + (rank < examples % ranks)


def batch_sizes(examples: int, batch_size: int) -> list[int]:
    """Of the global batches of so many examples: the last is what is left."""
    return [min(batch_size, examples - first) for first in range(0, examples, batch_size)]


def rank_batches(order_N: Tensor, batch_size: int, rank: int, world_size: int) -> list[Tensor]:
    """The batches of one rank: global batch k is order[k * batch_size : (k + 1) * batch_size],
    dealt to the ranks in turn. Over all ranks every example comes exactly once, but for stand-ins:
    see `RankShare`.
    """
    batches = order_N.split(batch_size) if len(order_N) else ()
    return [batch[RankShare(len(batch), rank, world_size).training_rows] for batch in batches]
