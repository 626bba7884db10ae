"""Composition of two digits: example k is a function of its place, and nothing else decides it; its
random numbers are those of SplitMix64.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from small_data import make_noise
from torch import Tensor

from capsweep.data.batches import Split
from capsweep.data.images import LabelledImages
from capsweep.data.pairs import Pairs, PairSource, draw_integers, draw_words
from capsweep.errors import ConfigError

SIDE = 6


def digits(labels: list[int], channels: int = 1) -> LabelledImages:
    """Noise of SIDE x SIDE pixels, with the labels given."""
    return make_noise(len(labels), channels, SIDE, SIDE, labels)


def source(
    examples: LabelledImages, split: Split = "train", seed: int = 0, margin: int = 2, shift: int = 2
) -> PairSource:
    return PairSource(examples, split, seed, margin, shift)


def labels_of(count: int, classes: int = 10) -> list[int]:
    """In no particular order, every class there."""
    return [(7 * n + n // 5) % classes for n in range(count)]


def equal(one: Pairs, other: Pairs) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def at(pairs: Pairs, index: Tensor) -> Pairs:
    return Pairs(*(part[index] for part in pairs))


def canvas_with(image_CHW: np.ndarray, canvas: int, down: int, right: int) -> np.ndarray:
    """The image in the middle, moved; what leaves the canvas is gone."""
    top, left = ((canvas - size) // 2 for size in image_CHW.shape[1:])
    padded = np.pad(image_CHW.astype(np.int64), ((0, 0), (canvas, canvas), (canvas, canvas)))
    rows, columns = canvas - top - down, canvas - left - right
    return padded[:, rows : rows + canvas, columns : columns + canvas]


@given(data=st.data(), seed=st.integers(0, 5))
@at_most_examples(40)
def test_an_example_is_the_same_in_whatever_company_and_order(
    data: st.DataObject, seed: int
) -> None:
    made = source(digits(labels_of(23)), seed=seed)
    whole = made.compose_pairs(torch.arange(200))
    index = torch.tensor(data.draw(st.lists(st.integers(0, 199), min_size=1, max_size=30)))
    assert equal(made.compose_pairs(index), at(whole, index))


def test_an_example_far_into_the_sequence_needs_none_before_it() -> None:
    made, far = source(digits(labels_of(23))), 60_000_000_000
    pair = made.compose_pairs(torch.tensor([far]))
    assert pair.sources_BL[0, 0] == far % 23
    assert equal(pair, at(made.compose_pairs(torch.arange(far - 3, far + 3)), torch.tensor([3])))


def test_seed_and_split_each_give_another_sequence() -> None:
    examples, k_B = digits(labels_of(40)), torch.arange(500)
    made = [source(examples), source(examples, seed=1), source(examples, split="test")]
    partners = [one.compose_pairs(k_B).sources_BL[:, 1] for one in made]
    for other in partners[1:]:
        assert (partners[0] == other).double().mean() < 0.15  # by chance: 1 in 36
    assert equal(source(examples).compose_pairs(k_B), made[0].compose_pairs(k_B))


def test_the_sequence_is_the_same_on_every_machine() -> None:
    # A change of these changes every MultiMNIST result without a change of its signature.
    one = LabelledImages(torch.zeros(7, 1, 4, 4, dtype=torch.uint8), torch.arange(7) % 3)
    pairs = PairSource(one, "train", seed=0, margin=1, shift=4).compose_pairs(torch.arange(6))
    assert pairs.sources_BL[:, 1].tolist() == [2, 5, 3, 2, 0, 0]
    shifts = [1, 1, 3, -2, -1, -1, -4, -3, 2, -2, 4, -4]
    assert pairs.shifts_BL2[:3].flatten().tolist() == shifts


@given(
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=30).filter(lambda x: len(set(x)) > 1)
)
@at_most_examples(40)
def test_the_two_digits_are_of_the_split_and_of_different_classes(labels: list[int]) -> None:
    examples = digits(labels)
    pairs = source(examples).compose_pairs(torch.arange(5 * len(labels)))
    assert pairs.sources_BL.min() >= 0
    assert pairs.sources_BL.max() < len(labels)
    assert (pairs.labels_BL[:, 0] != pairs.labels_BL[:, 1]).all()
    assert torch.equal(pairs.labels_BL, examples.labels_N[pairs.sources_BL])
    assert pairs.sources_BL[:, 0].tolist() == [k % len(labels) for k in range(5 * len(labels))]


def test_every_digit_of_another_class_is_equally_likely_as_partner() -> None:
    labels = torch.tensor([0, 1, 1, 2, 0, 2, 2, 2, 3])  # classes of 2, 2, 4 and 1 digits
    count, draws = len(labels), 2_000
    pairs = source(digits(labels.tolist())).compose_pairs(torch.arange(count * draws))
    drawn = (pairs.sources_BL[:, 0] * count + pairs.sources_BL[:, 1]).bincount(minlength=count**2)
    for base, counts in enumerate(drawn.view(count, count)):
        others = labels != labels[base]
        assert (counts[~others] == 0).all()
        expected = draws / int(others.sum())
        assert ((counts[others] - expected).abs() < 5 * expected**0.5).all()


@given(
    channels=st.integers(1, 2),
    margin=st.integers(0, 3),
    shift=st.integers(0, 5),
    seed=st.integers(0, 99),
)
@at_most_examples(30)
def test_an_image_is_the_clipped_sum_of_its_two_shifted_digits(
    channels: int, margin: int, shift: int, seed: int
) -> None:
    examples, canvas = digits(labels_of(12), channels), SIDE + 2 * margin
    pairs = source(examples, seed=seed, margin=margin, shift=shift).compose_pairs(torch.arange(24))
    assert pairs.images_BCHW.dtype == pairs.digits_BLCHW.dtype == torch.uint8
    for k in range(24):
        alone = [
            canvas_with(examples.images_NCHW[place].numpy(), canvas, down, right)
            for place, (down, right) in zip(
                pairs.sources_BL[k].tolist(), pairs.shifts_BL2[k].tolist(), strict=True
            )
        ]
        np.testing.assert_array_equal(pairs.digits_BLCHW[k].numpy(), np.stack(alone))
        together = np.minimum(alone[0] + alone[1], 255)
        np.testing.assert_array_equal(pairs.images_BCHW[k].numpy(), together)


@pytest.mark.parametrize("shift", [0, 1, 2, 5])  # windows that are one stretch of memory, or not
@pytest.mark.parametrize("channels", [1, 2])
def test_images_without_their_digits_are_the_same(channels: int, shift: int) -> None:
    made = source(digits(labels_of(23), channels), shift=shift)
    k_B = torch.arange(200).flip(0)
    whole = made.compose_pairs(k_B)
    assert torch.equal(made.compose_images(made.draw_pairs(k_B)), whole.images_BCHW)
    assert equal(made.compose_pairs(k_B), whole)  # the digits themselves were not added to
    assert made.compose_images(made.draw_pairs(k_B[:0])).shape == (0, *whole.images_BCHW.shape[1:])


def test_digits_of_one_class_alone_make_no_pairs() -> None:
    with pytest.raises(ConfigError, match=r"two classes"):
        source(digits([3, 3, 3]))


@pytest.mark.gpu
def test_a_gpu_composes_the_same_pixels() -> None:
    examples, k_B = digits(labels_of(40)), torch.arange(1000)
    on_gpu = source(examples.to(torch.device("cuda"))).compose_pairs(k_B.cuda())
    assert equal(Pairs(*(part.cpu() for part in on_gpu)), source(examples).compose_pairs(k_B))


WORD = 2**64
KEYS = st.integers(0, WORD - 1)
PLACES = st.integers(-(2**63), 2**63 - 1)
BOUNDS = st.integers(1, 2**23)


def splitmix64(key: int, place: int) -> int:
    """Word `place` of the sequence that starts at `key`, in Python's unbounded integers."""
    z = (key + (place + 1) * 0x9E3779B97F4A7C15) % WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def words(key: int, places: Tensor) -> list[int]:
    """Unsigned."""
    return [word % WORD for word in draw_words(key, places).flatten().tolist()]


@given(key=KEYS, places=st.lists(PLACES, min_size=1, max_size=20))
def test_every_word_is_that_of_splitmix64(key: int, places: list[int]) -> None:
    found = words(key, torch.tensor(places))
    assert found == [splitmix64(key, place) for place in places]


def test_the_first_words_are_the_published_ones() -> None:
    # Seed 1234567, as Rosetta Code and the reference implementations of other languages print it.
    assert words(1234567, torch.arange(5)) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(key=KEYS, bound=BOUNDS, places=st.lists(PLACES, min_size=1, max_size=20))
def test_a_number_below_a_bound_is_the_whole_part_of_bound_times_40_bits(
    key: int, bound: int, places: list[int]
) -> None:
    found = draw_integers(bound, key, torch.tensor(places)).tolist()
    assert found == [(splitmix64(key, place) >> 24) * bound >> 40 for place in places]
    assert all(0 <= number < bound for number in found)


@pytest.mark.gpu
def test_a_gpu_draws_the_same_numbers() -> None:
    places = torch.arange(10_000)
    on_gpu = draw_integers(2**22, 2**63 - 25, places.cuda())
    assert torch.equal(on_gpu.cpu(), draw_integers(2**22, 2**63 - 25, places))
