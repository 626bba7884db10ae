"""Random numbers by their place: a counter-based generator in integer arithmetic alone.

SplitMix64 (Steele, Lea, Flood 2014), read at any position without the ones before it. The same
bits on every device and machine, since 64-bit integers wrap alike everywhere.
"""

from torch import Tensor

INCREMENT = 0x9E3779B97F4A7C15
FIRST_FACTOR, SECOND_FACTOR = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
BITS = 40  # of a word, that a choice is made from; a bound may have up to 23


def words(key: int, counter: Tensor) -> Tensor:
    """The 64 bits at each position of the sequence `key`, as int64 of the shape of `counter`."""
    z = counter * _signed(INCREMENT) + _signed(INCREMENT + key)
    for bits, factor in ((30, FIRST_FACTOR), (27, SECOND_FACTOR)):
        z ^= _shifted_right(z, bits)
        z *= _signed(factor)
    return z.bitwise_xor_(_shifted_right(z, 31))


def draws(key: int, counter: Tensor) -> Tensor:
    """The BITS bits at each position that a choice is made from, for `chosen`."""
    return _shifted_right(words(key, counter), 64 - BITS)


def chosen(bound: "Tensor | int", draw: Tensor) -> Tensor:
    """The whole number in 0 .. bound - 1 that each of `draws` stands for, int64; bound < 2**23.

    Each is the integer part of bound * u for u of 40 bits, so no value is favoured by more than
    bound / 2**40.
    """
    return (draw * bound).bitwise_right_shift_(BITS)


def below(bound: "Tensor | int", key: int, counter: Tensor) -> Tensor:
    """Whole numbers uniform in 0 .. bound - 1, int64, one for each position; bound < 2**23."""
    return chosen(bound, draws(key, counter))


def _signed(value: int) -> int:
    """The int64 of the same 64 bits."""
    return (value + 2**63) % 2**64 - 2**63


def _shifted_right(z: Tensor, bits: int) -> Tensor:
    """A logical shift; that of int64 would repeat the sign."""
    return (z >> bits).bitwise_and_(2 ** (64 - bits) - 1)
