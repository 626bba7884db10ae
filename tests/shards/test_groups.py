"""The order of examples in shards: each exactly once, from any position, whoever asks."""

import time
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capsweep.shards.groups import BLOCK, BUFFER, PassOrder

COUNTS = st.integers(0, 300)
SIZES = st.integers(1, 70)


def list_examples(order: PassOrder, position: int, count: int) -> list[int]:
    """The numbers of so many examples from a position on."""
    places: list[int] = []
    for group, part in order.groups_from(position, count):
        members = [k for start, stop in group.stretches for k in range(start, stop)]
        assert len(members) == len(group)
        places += [members[place] for place in group.draw_permutation()[part].tolist()]
    return places


@given(COUNTS, SIZES, SIZES, st.integers(0, 3))
def test_a_pass_has_every_example_exactly_once(
    count: int, block: int, buffer: int, number: int
) -> None:
    places = list_examples(PassOrder(count, 0, block, buffer), number * count, count)
    assert sorted(places) == list(range(count))


@given(st.integers(1, 300), SIZES, SIZES, st.data())
def test_any_position_gives_the_tail_of_the_whole(
    count: int, block: int, buffer: int, data: st.DataObject
) -> None:
    whole = list_examples(
        PassOrder(count, 5, block, buffer), 0, 3 * count
    )  # over the ends of passes
    assert len(whole) == 3 * count
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    fresh = PassOrder(count, 5, block, buffer)
    assert list_examples(fresh, start, stop - start) == whole[start:stop]


@given(st.integers(1, 300), SIZES, SIZES)
def test_a_group_is_at_most_the_buffer_and_reads_whole_blocks(
    count: int, block: int, buffer: int
) -> None:
    order = PassOrder(count, 0, block=block, buffer=buffer)
    groups = [group for group, _ in order.groups_from(0, count)]
    assert all(0 < len(group) <= buffer for group in groups)
    stretches = [stretch for group in groups for stretch in group.stretches]
    assert all(start // block == (stop - 1) // block for start, stop in stretches)
    assert len(stretches) <= -(-count // block) + len(groups)


def test_what_is_read_is_the_same_on_every_machine() -> None:
    """A change here makes other runs of the same cells."""
    assert list_examples(PassOrder(20, 0, block=4, buffer=8), 0, 12) == GOLDEN


GOLDEN = [11, 8, 10, 15, 13, 12, 9, 14, 0, 4, 7, 2]


def test_examples_travel_as_far_as_the_buffer_lets_them() -> None:
    count = 60 * BUFFER
    order = torch.tensor(list_examples(PassOrder(count, 0), 0, count))
    position = torch.empty_like(order)
    position[order] = torch.arange(count)
    moved = (position - torch.arange(count)).abs().double().mean() / count
    apart = (position[1:] - position[:-1]).abs().double()
    of_block = torch.arange(count - 1) % BLOCK != BLOCK - 1
    assert moved.item() == pytest.approx(1 / 3, abs=0.02)  # as in a whole shuffle
    assert apart[of_block].max() < BUFFER
    assert apart[of_block].mean().item() == pytest.approx(BUFFER / 3, rel=0.02)
    assert apart[~of_block].mean().item() == pytest.approx(count / 3, rel=0.05)
    batch = np.unique((order[:1000] // BLOCK).numpy())
    assert len(batch) == BUFFER // BLOCK


def test_the_order_of_sixty_million_costs_milliseconds_and_few_megabytes() -> None:
    tracemalloc.start()
    begun = time.process_time()
    order = PassOrder(60_000_000, 0)
    groups = list(order.groups_from(59_940_000, 120_000))  # the end of a pass, and a new one
    seconds = time.process_time() - begun
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(part.stop - part.start for _, part in groups) == 120_000
    assert order._blocks is not None
    assert order._blocks[1].nbytes == 8 * 60_000_000 // BLOCK
    assert peak < 2**20
    assert seconds < 0.5
