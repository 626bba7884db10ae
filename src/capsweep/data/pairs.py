"""MultiMNIST: two digits of different classes, composed on the training device.

"Dynamic Routing Between Capsules", section 6.1. Example k of a split is a pure function of (seed,
split, k), so any example can be made again anywhere, and none has to be stored.

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
    seed_of,
    shift_windows,
    to_unit,
    window_places,
    windows_at,
)
from capsweep.data.images import LabelledImages
from capsweep.errors import ConfigError

INCREMENT = 0x9E3779B97F4A7C15
FIRST_FACTOR, SECOND_FACTOR = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
BITS = 40  # of a word, that a choice is made from; a bound may have up to 23
VERSION = 1  # to be raised when example k becomes another one
DRAWS = 8  # places of the random sequence that belong to one example
USED = 5  # of them: the partner; row and column of the first digit's shift; those of the other's


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


class Pairs(NamedTuple):
    """Composed uint8 images, the two digits alone, and where they come from.

    sources_BL: places of the two digits in the split; shifts_BL2: rows down, columns right.
    """

    images_BCHW: Tensor
    digits_BLCHW: Tensor
    labels_BL: Tensor
    sources_BL: Tensor
    shifts_BL2: Tensor


class PairDraws(NamedTuple):
    """What the sequence says of examples: all that a pair is made of, but no pixel.

    place_BL: where the two windows begin; see `window_places`.
    """

    labels_BL: Tensor
    sources_BL: Tensor
    shifts_BL2: Tensor
    place_BL: Tensor

    def select(self, index_B: Tensor) -> "PairDraws":
        """Of the examples at these places."""
        return PairDraws(*(part.index_select(0, index_B) for part in self))


class PairSource:
    """The digits of one split, ready to be composed.

    seed: of the data set, not of a cell. margin: pixels added on each side of a digit's image;
    shift: by up to how many it moves. What is moved out of the canvas is cut off. Raises
    ConfigError when all digits are of one class.
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
                f"the {len(digits)} digits of {split} are all of one class, and a pair is of two "
                "classes; for validation raise dataset.validation"
            )
        # Of each digit: where its class begins in by_class_N, how many that has, and the others.
        count_N, start_K = count_K[self.labels_N], count_K.cumsum(0) - count_K
        self.classmates_N3 = torch.stack(
            [start_K[self.labels_N], count_N, len(digits) - count_N], dim=1
        )
        self.used_5 = torch.arange(USED, device=self.labels_N.device)

    def compose_pairs(self, k_B: Tensor) -> Pairs:
        """Examples k: digit k modulo N below, one of another class drawn for it on top.

        Both are shifted independently; intensities are added and clipped at 255.
        """
        return self.compose_drawn(self.draw_pairs(k_B))

    def draw_pairs(self, k_B: Tensor) -> PairDraws:
        """The numbers of examples k: many small operations, cheapest for a whole epoch at once."""
        first_B = k_B % len(self.labels_N)
        draw_B5 = draw_bits(self.key, (k_B * DRAWS)[:, None] + self.used_5)
        sources_BL = torch.stack([first_B, self._draw_partner(first_B, draw_B5[:, 0])], dim=1)
        offsets_B4 = choose_integers(2 * self.shift + 1, draw_B5[:, 1:])
        offsets_BL2 = offsets_B4.unflatten(1, (2, 2))
        return PairDraws(
            labels_BL=_take_values(self.labels_N, sources_BL),
            sources_BL=sources_BL,
            shifts_BL2=self.shift - offsets_BL2,
            place_BL=window_places(self.windows, sources_BL, offsets_BL2),
        )

    def compose_drawn(self, drawn: PairDraws) -> Pairs:
        """The images that numbers stand for."""
        shape = drawn.place_BL.shape
        digits_BLCHW = windows_at(self.windows, drawn.place_BL.flatten()).unflatten(0, shape)
        return Pairs(_add_clipped(*digits_BLCHW.unbind(1)), digits_BLCHW, *drawn[:3])

    def compose_images(self, drawn: PairDraws) -> Tensor:
        """The composed uint8 images [B, C, H, W] alone, in about two thirds of the time.

        Fastest for about 1,000 at once: more do not stay in the cache.
        """
        below_B, above_B = drawn.place_BL.unbind(1)
        return _add_clipped(windows_at(self.windows, below_B), windows_at(self.windows, above_B))

    def _draw_partner(self, first_B: Tensor, draw_B: Tensor) -> Tensor:
        """A digit of another class, each equally likely."""
        start_B, count_B, others_B = self.classmates_N3.index_select(0, first_B).unbind(1)
        rank_B = choose_integers(others_B, draw_B)
        return _take_values(
            self.by_class_N, torch.where(rank_B < start_B, rank_B, rank_B + count_B)
        )


def _take_values(values_N: Tensor, index: Tensor) -> Tensor:
    """values_N[index], an index of any shape."""
    return values_N.index_select(0, index.flatten()).view_as(index)


def _add_clipped(one: Tensor, other: Tensor) -> Tensor:
    """The sum of bytes, clipped at 255, without a wider type: ~one is the room in it."""
    room = one.bitwise_not()
    return torch.minimum(room, other, out=room).add_(one)


class ComposedPairs(DeviceSplit):
    """Pairs as batches.

    An epoch has as many training pairs as the split has digits, and after `pairs` epochs they
    repeat: N * pairs different ones, 60 million for MNIST and 1,000. test_examples: the first so
    many of the test digits' sequence; validation has one per held-out digit.
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
        if len(examples):  # else no example will be asked for
            self.source = PairSource(examples, split, seed, margin, shift)
        self.device = examples.labels_N.device
        self.count = test_examples if split == "test" else len(examples)
        self.pairs = pairs

    def __len__(self) -> int:
        return self.count

    def prepare_epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """The epoch's stretch of the sequence; the cell's seed decides their order alone."""
        first = (epoch % self.pairs) * len(self)
        drawn = self.source.draw_pairs(torch.arange(first, first + len(self), device=self.device))
        return lambda index_B: _make_batch(self.source.compose_drawn(drawn.select(index_B)))

    def evaluation_batch(self, part: slice) -> Batch:
        """Examples in order."""
        return _make_batch(self._compose_part(part))

    def fingerprint(self) -> str:
        """sha256 of all evaluated images and labels."""
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
