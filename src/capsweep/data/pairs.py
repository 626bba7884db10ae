"""MultiMNIST: images of two digits of different classes, composed on the training device.

The data set is defined in "Dynamic Routing Between Capsules" (Sabour, Frosst, Hinton 2017), section
6.1. Example k of a split depends only on (seed, split, k). So any example can be composed again on
any machine, and no example has to be stored.

Shape letters: B batch, L = 2 digits of an image, N source digits, C H W image.
"""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from capsweep.data.batches import (
    Batch,
    DeviceSplit,
    Split,
    copy_windows,
    locate_windows,
    seed_of,
    shift_windows,
    to_unit,
)
from capsweep.data.images import LabelledImages
from capsweep.errors import ConfigError

INCREMENT = 0x9E3779B97F4A7C15
FIRST_FACTOR, SECOND_FACTOR = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
BITS = 40  # random bits from which an integer below a bound is chosen; the bound has up to 23 bits
VERSION = 1  # raise it when the content of example k changes
DRAWS = 8  # numbers of the random sequence that are reserved for one example
USED_DRAWS = 5  # used numbers: one for the second digit, four for rows and columns of both shifts


def draw_words(key: int, counter: Tensor) -> Tensor:
    """Compute the 64-bit words at some positions of a random sequence (SplitMix64).

    Args:
        key: Number of the sequence.
        counter: Positions in the sequence, int64 of any shape.

    Returns:
        The 64 random bits at each position, int64 in the shape of `counter`.
    """
    z = counter * _to_signed(INCREMENT) + _to_signed(INCREMENT + key)
    for bits, factor in ((30, FIRST_FACTOR), (27, SECOND_FACTOR)):
        z ^= _shift_right(z, bits)
        z *= _to_signed(factor)
    return z.bitwise_xor_(_shift_right(z, 31))


def draw_bits(key: int, counter: Tensor) -> Tensor:
    """Compute BITS random bits at each position of a random sequence, for `choose_integers`.

    These are the highest bits of the word that `draw_words` computes for the position.

    Args:
        key: Number of the sequence.
        counter: Positions in the sequence, int64 of any shape.
    """
    return _shift_right(draw_words(key, counter), 64 - BITS)


def choose_integers(bound: Tensor | int, draw: Tensor) -> Tensor:
    """Map random bits to integers in 0 .. bound - 1.

    Each integer is the whole part of bound * u, where u is a random number in [0, 1) with 40 bits.
    So the probability of each integer differs from 1 / bound by less than 1 / 2**40.

    Args:
        bound: The number of possible integers, below 2**23. A number holds for all draws; a tensor
            has a number for each draw.
        draw: Random bits from `draw_bits`.

    Returns:
        The integers, int64.
    """
    return (draw * bound).bitwise_right_shift_(BITS)


def draw_integers(bound: Tensor | int, key: int, counter: Tensor) -> Tensor:
    """Draw an integer, uniform in 0 .. bound - 1, for each position of a random sequence.

    Args:
        bound: The number of possible integers, below 2**23. A number holds for all positions; a
            tensor has a number for each position.
        key: Number of the sequence.
        counter: Positions in the sequence, int64 of any shape.

    Returns:
        The integers, int64 in the shape of `counter`.
    """
    return choose_integers(bound, draw_bits(key, counter))


def _to_signed(value: int) -> int:
    """Convert an integer to the int64 that has the same lowest 64 bits."""
    return (value + 2**63) % 2**64 - 2**63


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Shift bits right and fill with zeros; torch's shift of int64 fills with the sign bit."""
    return (z >> bits).bitwise_and_(2 ** (64 - bits) - 1)


class Pairs(NamedTuple):
    """Composed images of two digits each; the second digit is laid over the first.

    Attributes:
        images_BCHW: The composed images, uint8 [B, C, H, W].
        digits_BLCHW: A separate image of each digit at its position, uint8 [B, L, C, H, W].
        labels_BL: The classes of the two digits, int64 [B, L].
        sources_BL: The numbers of the two digits in their split, int64 [B, L].
        shifts_BL2: By how many pixels each digit is moved down and right, int64 [B, L, 2].
    """

    images_BCHW: Tensor
    digits_BLCHW: Tensor
    labels_BL: Tensor
    sources_BL: Tensor
    shifts_BL2: Tensor


class PairDraws(NamedTuple):
    """The random choices from which pairs are composed, without pixels.

    Attributes:
        labels_BL: The classes of the two digits, int64 [B, L].
        sources_BL: The numbers of the two digits in their split, int64 [B, L].
        shifts_BL2: By how many pixels each digit is moved down and right, int64 [B, L, 2].
        address_BL: The memory offsets of the shifted digits, int64 [B, L]; see `locate_windows`.
    """

    labels_BL: Tensor
    sources_BL: Tensor
    shifts_BL2: Tensor
    address_BL: Tensor

    def select(self, index_B: Tensor) -> "PairDraws":
        """Return the choices of some of the examples.

        Args:
            index_B: Positions of the examples, int64.
        """
        return PairDraws(*(part.index_select(0, index_B) for part in self))


class PairSource:
    """The digits of one split, prepared for the composition of pairs.

    Args:
        digits: The digits, images [N, C, H, W] and labels [N].
        split: The split of the digits.
        seed: Seed of the data set, which is the same for all cells.
        margin: Pixels that are added on each side of a digit's image.
        shift: Largest shift of a digit in pixels, in both axes. Parts that leave the image are cut
            off.

    Raises:
        ConfigError: If all digits are of one class.
    """

    def __init__(
        self, digits: LabelledImages, split: Split, seed: int, margin: int, shift: int
    ) -> None:
        canvas = digits.images_NCHW.shape[-1] + 2 * margin
        self.windows = shift_windows(digits.images_NCHW, shift, canvas)
        self.labels_N, self.shift = digits.labels_N, shift
        self.key = seed_of(seed, "pairs", split)
        self.by_class_N = torch.argsort(digits.labels_N, stable=True)
        count_K = torch.bincount(digits.labels_N)
        if (count_K > 0).sum() < 2:
            raise ConfigError(
                f"all {len(digits)} digits of the {split} split are of one class, but a pair needs "
                "two classes; for the validation split, raise dataset.validation"
            )
        # For each digit: where its class begins in by_class_N, the size of this class, and the
        # number of digits of other classes.
        count_N, start_K = count_K[self.labels_N], count_K.cumsum(0) - count_K
        self.classmates_N3 = torch.stack(
            [start_K[self.labels_N], count_N, len(digits) - count_N], dim=1
        )
        self.used_5 = torch.arange(USED_DRAWS, device=self.labels_N.device)

    def compose_pairs(self, k_B: Tensor) -> Pairs:
        """Compose the examples with the given numbers.

        Example k shows digit k modulo N, and over it a random digit of another class. Both are
        shifted independently. Their intensities are added and clipped at 255.

        Args:
            k_B: Numbers of the examples, int64 [B].

        Returns:
            The composed images, with their digits, labels and random choices.
        """
        return self.compose_drawn(self.draw_pairs(k_B))

    def draw_pairs(self, k_B: Tensor) -> PairDraws:
        """Draw the random choices of some examples.

        This takes many small operations, so a call for a whole epoch is fastest.

        Args:
            k_B: Numbers of the examples, int64 [B].
        """
        first_B = k_B % len(self.labels_N)
        draw_B5 = draw_bits(self.key, (k_B * DRAWS)[:, None] + self.used_5)
        sources_BL = torch.stack([first_B, self._draw_partner(first_B, draw_B5[:, 0])], dim=1)
        offsets_B4 = choose_integers(2 * self.shift + 1, draw_B5[:, 1:])
        offsets_BL2 = offsets_B4.unflatten(1, (2, 2))
        return PairDraws(
            labels_BL=_take_values(self.labels_N, sources_BL),
            sources_BL=sources_BL,
            shifts_BL2=self.shift - offsets_BL2,
            address_BL=locate_windows(self.windows, sources_BL, offsets_BL2),
        )

    def compose_drawn(self, drawn: PairDraws) -> Pairs:
        """Compose the images of pairs, and separate images of their digits.

        Args:
            drawn: The random choices from `draw_pairs`.
        """
        shape = drawn.address_BL.shape
        digits_BLCHW = copy_windows(self.windows, drawn.address_BL.flatten()).unflatten(0, shape)
        return Pairs(_add_clipped(*digits_BLCHW.unbind(1)), digits_BLCHW, *drawn[:3])

    def compose_images(self, drawn: PairDraws) -> Tensor:
        """Compose only the images of pairs, in about two thirds of the time of `compose_drawn`.

        A call for about 1,000 examples is fastest; more examples do not fit into the cache.

        Args:
            drawn: The random choices from `draw_pairs`.

        Returns:
            The composed images, uint8 [B, C, H, W].
        """
        below_B, over_B = drawn.address_BL.unbind(1)
        return _add_clipped(copy_windows(self.windows, below_B), copy_windows(self.windows, over_B))

    def _draw_partner(self, first_B: Tensor, draw_B: Tensor) -> Tensor:
        """Choose a digit of another class for each digit, with equal probabilities."""
        start_B, count_B, others_B = self.classmates_N3.index_select(0, first_B).unbind(1)
        rank_B = choose_integers(others_B, draw_B)
        return _take_values(
            self.by_class_N, torch.where(rank_B < start_B, rank_B, rank_B + count_B)
        )


def _take_values(values_N: Tensor, index: Tensor) -> Tensor:
    """Return values_N[index] for an index of any shape, in less time than by indexing."""
    return values_N.index_select(0, index.flatten()).view_as(index)


def _add_clipped(one: Tensor, other: Tensor) -> Tensor:
    """Add uint8 tensors and clip the sums at 255; all intermediate results are uint8 too.

    `~one` is 255 - one, the most that can be added to `one` without an overflow.
    """
    room = one.bitwise_not()
    return torch.minimum(room, other, out=room).add_(one)


class ComposedPairs(DeviceSplit):
    """Batches of pairs that are composed when they are needed.

    A training epoch has N pairs, one for each digit of the split. The same pairs come again after
    `pairs` epochs. So there are N * pairs different pairs: 60 million for MNIST and pairs = 1,000.

    Args:
        examples: The digits, images [N, C, H, W] and labels [N], on the training device.
        split: The split of the digits.
        seed: Seed of the data set, which is the same for all cells.
        margin: Pixels that are added on each side of a digit's image.
        shift: Largest shift of a digit in pixels, in both axes.
        pairs: Training pairs per digit.
        test_examples: How many test pairs are used: the first pairs of their sequence. Validation
            has one pair for each held-out digit.

    Raises:
        ConfigError: If all digits are of one class.
    """

    def __init__(
        self,
        examples: LabelledImages,
        split: Split,
        *,
        seed: int,
        margin: int,
        shift: int,
        pairs: int,
        test_examples: int,
    ) -> None:
        if len(examples):  # an empty split composes nothing
            self.source = PairSource(examples, split, seed, margin, shift)
        self.device = examples.labels_N.device
        self.count = test_examples if split == "test" else len(examples)
        self.pairs = pairs

    def __len__(self) -> int:
        return self.count

    def prepare_epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """Draw the pairs of an epoch; see `DeviceSplit.prepare_epoch`.

        The pairs of an epoch depend only on the number of the epoch. The seed of the cell decides
        the order of the pairs.
        """
        first = (epoch % self.pairs) * len(self)
        drawn = self.source.draw_pairs(torch.arange(first, first + len(self), device=self.device))
        return lambda index_B: _make_batch(self.source.compose_drawn(drawn.select(index_B)))

    def evaluation_batch(self, part: slice) -> Batch:
        """Return pairs in the order of their sequence; see `EvaluatedSplit.evaluation_batch`."""
        return _make_batch(self._compose_part(part))

    def fingerprint(self) -> str:
        """Compute the sha256 of the images and labels that are evaluated."""
        digest = hashlib.sha256()
        for start in range(0, len(self), 1000):
            pairs = self._compose_part(slice(start, start + 1000))
            digest.update(pairs.images_BCHW.cpu().numpy().tobytes())
            digest.update(pairs.labels_BL.cpu().to(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _compose_part(self, part: slice) -> Pairs:
        start, stop, _ = part.indices(len(self))
        return self.source.compose_pairs(torch.arange(start, stop, device=self.device))


def _make_batch(pairs: Pairs) -> Batch:
    images_BCHW, targets_BLCHW = to_unit(pairs.images_BCHW), to_unit(pairs.digits_BLCHW)
    return Batch(images_BCHW, pairs.labels_BL, targets_BLCHW)
