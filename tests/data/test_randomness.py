"""Random numbers and orders by their place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from capsweep.data import pairs
from capsweep.data.batches import epoch_order, generator_of, seed_of

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
    return [word % WORD for word in pairs.draw_words(key, places).flatten().tolist()]


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
    found = pairs.draw_integers(bound, key, torch.tensor(places)).tolist()
    assert found == [(splitmix64(key, place) >> 24) * bound >> 40 for place in places]
    assert all(0 <= number < bound for number in found)


@pytest.mark.gpu
def test_a_gpu_draws_the_same_numbers() -> None:
    places = torch.arange(10_000)
    on_gpu = pairs.draw_integers(2**22, 2**63 - 25, places.cuda())
    assert torch.equal(on_gpu.cpu(), pairs.draw_integers(2**22, 2**63 - 25, places))


def test_places_have_their_own_seeds() -> None:
    places = [(0, "order", 1), (0, "shift", 1), (1, "order", 0), (0, "order", 11), ("0", "order1")]
    assert len({seed_of(*place) for place in places}) == len(places)
    assert all(0 <= seed_of(*place) < 2**63 for place in places)
    one, same = (torch.rand(4, generator=generator_of(7, "weights")) for _ in range(2))
    assert torch.equal(one, same)


def test_the_seed_of_a_place_is_the_same_on_every_machine() -> None:
    # A change of these changes every result without a change of its signature.
    assert seed_of(0, "order", 0) == 3955691223199900983
    assert epoch_order(8, 0, 0).tolist() == [7, 5, 6, 0, 3, 4, 1, 2]
