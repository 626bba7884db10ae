"""MultiMNIST: images of two digits of different classes, composed on the training device.

The data set is defined in "Dynamic Routing Between Capsules" (Sabour, Frosst, Hinton 2017), section
6.1. For the same digits and settings, example k of a split depends only on (seed, split, k). So any
example can be composed again on any machine, and no example has to be stored.

Shape letters: B batch, L = 2 digits of an image, N source digits, C H W image.
"""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from capsweep.data.batches import Batch, DeviceSplit, Split, seed_of, to_unit
from capsweep.data.images import LabelledImages
from capsweep.data.windows import Windows
from capsweep.errors import ConfigError

INCREMENT = 0x9E3779B97F4A7C15
FIRST_FACTOR, SECOND_FACTOR = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
BITS = 40  # number of random bits for the choice of one integer, which has up to 23 bits
VERSION = 1  # increase it when the content of example k changes
DRAWS = 8  # words of the random sequence that are reserved for each example
USED_DRAWS = 5  # words that an example uses: one for the second digit, four for the shifts


def draw_words(key: int, counter: Tensor) -> Tensor:
    """Compute words of a random sequence of 64-bit words (SplitMix64).

    Args:
        key: The seed of the sequence.
        counter: Indices of the words in the sequence, int64 of any shape.

    Returns:
        The words, each with 64 random bits, int64 in the shape of `counter`.
    """
    z = counter * _to_signed(INCREMENT) + _to_signed(INCREMENT + key)
    for bits, factor in ((30, FIRST_FACTOR), (27, SECOND_FACTOR)):
        z ^= _shift_right(z, bits)
        z *= _to_signed(factor)
    return z.bitwise_xor_(_shift_right(z, 31))


def draw_bits(key: int, counter: Tensor) -> Tensor:
    """Compute words of a random sequence, and return the highest BITS bits of each word.

    `choose_integers` maps these bits to integers.

    Args:
        key: The seed of the sequence; see `draw_words`.
        counter: Indices of the words in the sequence, int64 of any shape.
    """
    return _shift_right(draw_words(key, counter), 64 - BITS)


def choose_integers(bound: Tensor | int, draw: Tensor) -> Tensor:
    """Map random bits to integers in 0 .. bound - 1.

    Each integer is floor(bound * draw / 2**40), where `draw` is uniform in 0 .. 2**40 - 1. So the
    probability of each integer differs from 1 / bound by less than 1 / 2**40.

    Args:
        bound: The number of possible integers, below 2**23. An int is the bound for all draws; a
            tensor gives one bound per draw.
        draw: Random bits from `draw_bits`, int64.

    Returns:
        The integers, int64.
    """
    return (draw * bound).bitwise_right_shift_(BITS)


def draw_integers(bound: Tensor | int, key: int, counter: Tensor) -> Tensor:
    """Draw uniform integers in 0 .. bound - 1 from the words of a random sequence.

    Args:
        bound: The number of possible integers, below 2**23. An int is the bound for all words; a
            tensor gives one bound per word.
        key: The seed of the sequence; see `draw_words`.
        counter: Indices of the words in the sequence, int64 of any shape.

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
    """Composed images, each with two digits of different classes.

    Attributes:
        images_BCHW: The composed images, uint8 [B, C, H, W].
        digits_BLCHW: A separate image of each shifted digit, uint8 [B, L, C, H, W].
        labels_BL: The classes of the two digits, int64 [B, L].
        sources_BL: The indices of the two digits in their split, int64 [B, L].
        shifts_BL2: The shift of each digit in pixels, down and right, int64 [B, L, 2].
    """

    images_BCHW: Tensor
    digits_BLCHW: Tensor
    labels_BL: Tensor
    sources_BL: Tensor
    shifts_BL2: Tensor


class PairDraws(NamedTuple):
    """The random choices that define pairs; the images are composed from them later.

    Attributes:
        labels_BL: The classes of the two digits, int64 [B, L].
        sources_BL: The indices of the two digits in their split, int64 [B, L].
        shifts_BL2: The shift of each digit in pixels, down and right, int64 [B, L, 2].
        address_BL: The memory offsets of the shifted digits, int64 [B, L]; see `Windows`.
    """

    labels_BL: Tensor
    sources_BL: Tensor
    shifts_BL2: Tensor
    address_BL: Tensor

    def select(self, index_B: Tensor) -> "PairDraws":
        """Return the choices for some of the pairs.

        Args:
            index_B: Indices of the pairs along the axis B, int64.
        """
        return PairDraws(*(part.index_select(0, index_B) for part in self))


class PairSource:
    """The digits of one split, prepared for the composition of pairs.

    Args:
        digits: Images [N, C, H, W] and labels [N] of the digits.
        split: Name of the split. Each split has its own random sequence.
        seed: Seed of the data set; all cells use the same seed.
        margin: Pixels that are added on each side of a digit's image.
        shift: Largest shift of a digit in pixels along each axis. Pixels of the digit that leave
            the image are cut off.

    Raises:
        ConfigError: If all digits are of one class.
    """

    def __init__(
        self, digits: LabelledImages, split: Split, seed: int, margin: int, shift: int
    ) -> None:
        canvas = digits.images_NCHW.shape[-1] + 2 * margin
        self.windows = Windows.at_shifts(digits.images_NCHW, shift, canvas)
        self.labels_N, self.shift = digits.labels_N, shift
        self.key = seed_of(seed, "pairs", split)
        self.by_class_N = torch.argsort(digits.labels_N, stable=True)
        count_K = torch.bincount(digits.labels_N)
        if (count_K > 0).sum() < 2:
            raise ConfigError(
                f"all {len(digits)} digits of the {split} split are of one class, but a pair needs "
                "two classes; for the validation split, raise dataset.validation"
            )
        # For each digit: the index in by_class_N at which its class begins, the number of digits of
        # its class, and the number of digits of other classes.
        count_N, start_K = count_K[self.labels_N], count_K.cumsum(0) - count_K
        self.classmates_N3 = torch.stack(
            [start_K[self.labels_N], count_N, len(digits) - count_N], dim=1
        )
        self.used_5 = torch.arange(USED_DRAWS, device=self.labels_N.device)

    def compose_pairs(self, k_B: Tensor) -> Pairs:
        """Compose the pairs with the given indices.

        Pair k shows digit k modulo N and a random digit of another class. The two digits are
        shifted independently. Their intensities are added and clipped at 255.

        Args:
            k_B: Indices k of the pairs, int64 [B].

        Returns:
            The composed images, with their digits, labels and random choices.
        """
        return self.compose_drawn(self.draw_pairs(k_B))

    def draw_pairs(self, k_B: Tensor) -> PairDraws:
        """Draw the random choices for some pairs.

        This takes many small operations, so one call for all pairs of an epoch is fastest.

        Args:
            k_B: Indices k of the pairs; see `compose_pairs`.
        """
        first_B = k_B % len(self.labels_N)
        draw_B5 = draw_bits(self.key, (k_B * DRAWS)[:, None] + self.used_5)
        sources_BL = torch.stack([first_B, self._draw_partner(first_B, draw_B5[:, 0])], dim=1)
        offsets_B4 = choose_integers(2 * self.shift + 1, draw_B5[:, 1:])
        offsets_BL2 = offsets_B4.unflatten(1, (2, 2))
        labels_BL = _take_values(self.labels_N, sources_BL)
        address_BL = self.windows.locate(sources_BL, offsets_BL2)
        return PairDraws(labels_BL, sources_BL, self.shift - offsets_BL2, address_BL)

    def compose_drawn(self, drawn: PairDraws) -> Pairs:
        """Compose the images of pairs, and a separate image of each digit.

        Args:
            drawn: The random choices from `draw_pairs`.
        """
        shape = drawn.address_BL.shape
        digits_BLCHW = self.windows.copy(drawn.address_BL.flatten()).unflatten(0, shape)
        return Pairs(_add_clipped(*digits_BLCHW.unbind(1)), digits_BLCHW, *drawn[:3])

    def compose_images(self, drawn: PairDraws) -> Tensor:
        """Compose the images of pairs without separate images of the digits.

        This takes about two thirds of the time of `compose_drawn`. A call for about 1,000 pairs is
        fastest, because more pairs do not fit into the cache of the CPU.

        Args:
            drawn: The random choices from `draw_pairs`.

        Returns:
            The composed images, uint8 [B, C, H, W].
        """
        below_B, over_B = drawn.address_BL.unbind(1)
        return _add_clipped(self.windows.copy(below_B), self.windows.copy(over_B))

    def _draw_partner(self, first_B: Tensor, draw_B: Tensor) -> Tensor:
        """Choose a second digit for each first digit, uniformly among digits of other classes."""
        start_B, count_B, others_B = self.classmates_N3.index_select(0, first_B).unbind(1)
        rank_B = choose_integers(others_B, draw_B)
        return _take_values(
            self.by_class_N, torch.where(rank_B < start_B, rank_B, rank_B + count_B)
        )


def _take_values(values_N: Tensor, index: Tensor) -> Tensor:
    """Return `values_N[index]` for an index of any shape, faster than by indexing."""
    return values_N.index_select(0, index.flatten()).view_as(index)


def _add_clipped(one: Tensor, other: Tensor) -> Tensor:
    """Add uint8 tensors and clip the sums at 255; all intermediate results are uint8 too.

    `~one` is 255 - one, the most that can be added to `one` without an overflow.
    """
    room = one.bitwise_not()
    return torch.minimum(room, other, out=room).add_(one)


class ComposedPairs(DeviceSplit):
    """A split whose examples are pairs; a pair is composed when a batch needs it.

    A training epoch has N pairs, one for each digit of the split. The same pairs come again after
    `pairs` epochs. So there are N * pairs different pairs: 60 million for MNIST and pairs = 1,000.

    Args:
        examples: Images [N, C, H, W] and labels [N] of the digits, on the training device.
        split: Name of the split.
        seed: Seed of the data set; all cells use the same seed.
        margin: Pixels that are added on each side of a digit's image.
        shift: Largest shift of a digit in pixels along each axis.
        pairs: Number of different training pairs per digit.
        test_examples: How many pairs the test split has; their indices begin at 0. The validation
            split has one pair for each held-out digit.

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
        if len(examples):  # an empty split has no pairs
            self.source = PairSource(examples, split, seed, margin, shift)
        self.device = examples.labels_N.device
        self.count = test_examples if split == "test" else len(examples)
        self.pairs = pairs

    def __len__(self) -> int:
        return self.count

    def prepare_epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """Draw the pairs of an epoch; see `DeviceSplit.prepare_epoch`.

        The pairs of an epoch do not depend on `seed`, the seed of the cell. This seed decides only
        the order in which the pairs are shown.
        """
        first = (epoch % self.pairs) * len(self)
        drawn = self.source.draw_pairs(torch.arange(first, first + len(self), device=self.device))
        return lambda index_B: _make_batch(self.source.compose_drawn(drawn.select(index_B)))

    def evaluation_batch(self, part: slice) -> Batch:
        """Return pairs in the order of their indices; see `EvaluatedSplit.evaluation_batch`."""
        return _make_batch(self._compose_part(part))

    def fingerprint(self) -> str:
        """Compute the sha256 of the images and labels that an evaluation of this split uses."""
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
