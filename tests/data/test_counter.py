"""Random numbers by their place: the words of SplitMix64, and whole numbers made of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from capsweep.data import randomness

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
    return [word % WORD for word in randomness.draw_words(key, places).flatten().tolist()]


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


@pytest.mark.parametrize("key", [0, 1, 2**63 - 1, 2**63, WORD - 1])
@pytest.mark.parametrize("place", [0, 2**32, 2**62, 2**63 - 1])
def test_keys_and_places_may_be_as_large_as_64_bits(key: int, place: int) -> None:
    assert words(key, torch.tensor([place])) == [splitmix64(key, place)]


@given(key=KEYS, bound=BOUNDS, places=st.lists(PLACES, min_size=1, max_size=20))
def test_a_number_below_a_bound_is_the_whole_part_of_bound_times_40_bits(
    key: int, bound: int, places: list[int]
) -> None:
    found = randomness.integers(bound, key, torch.tensor(places)).tolist()
    assert found == [(splitmix64(key, place) >> 24) * bound >> 40 for place in places]
    assert all(0 <= number < bound for number in found)


@given(key=KEYS, bounds=st.lists(BOUNDS, min_size=1, max_size=20))
def test_each_place_may_have_its_own_bound(key: int, bounds: list[int]) -> None:
    together = randomness.integers(torch.tensor(bounds), key, torch.arange(len(bounds)))
    alone = [
        int(randomness.integers(bound, key, torch.tensor(k))) for k, bound in enumerate(bounds)
    ]
    assert together.tolist() == alone


@pytest.mark.parametrize("bound", [2, 9, 10, 13, 1000])
def test_all_numbers_below_a_bound_are_equally_likely(bound: int) -> None:
    draws = 200 * bound + 20_000
    counts = randomness.integers(bound, 20171026, torch.arange(draws)).bincount(minlength=bound)
    assert len(counts) == bound
    expected = draws / bound
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    freedom = bound - 1
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("distance", [1, 2, 3, 8])
def test_numbers_at_a_distance_are_independent(distance: int) -> None:
    draws, bound = 100_000, 9
    numbers = randomness.integers(bound, 7, torch.arange(draws + distance))
    pairs = (numbers[:-distance] * bound + numbers[distance:]).bincount(minlength=bound**2)
    expected = draws / bound**2
    chi_square = float(((pairs - expected) ** 2 / expected).sum())
    assert abs(chi_square - bound**2) < 5 * (2 * bound**2) ** 0.5


@given(key=KEYS, order=st.permutations(range(24)))
def test_neither_order_nor_shape_of_the_places_decides_a_number(key: int, order: list[int]) -> None:
    whole = randomness.integers(1000, key, torch.arange(24))
    shuffled = randomness.integers(1000, key, torch.tensor(order).view(2, 3, 4))
    assert torch.equal(shuffled, whole[torch.tensor(order)].view(2, 3, 4))


def test_neighbouring_keys_have_nothing_in_common() -> None:
    places = torch.arange(1000)
    streams = [set(words(key, places)) for key in range(5)]
    assert len(set.union(*streams)) == 5000


def test_places_are_not_changed() -> None:
    places = torch.arange(10)
    randomness.integers(7, 3, places)
    assert torch.equal(places, torch.arange(10))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_draws_the_same_numbers() -> None:
    places = torch.arange(10_000)
    on_gpu = randomness.integers(2**22, 2**63 - 25, places.cuda())
    assert torch.equal(on_gpu.cpu(), randomness.integers(2**22, 2**63 - 25, places))
