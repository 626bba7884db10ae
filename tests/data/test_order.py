"""The order of an epoch is a function of its place; ranks share it without loss."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from capsweep.data.randomness import RankShare, epoch_order, generator_of, rank_batches, seed_of

SEEDS = st.integers(0, 2**62)
COUNTS = st.integers(1, 200)


@given(count=COUNTS, seed=SEEDS, epoch=st.integers(0, 1000))
def test_the_order_is_a_permutation_and_a_function_of_seed_and_epoch(
    count: int, seed: int, epoch: int
) -> None:
    order_N = epoch_order(count, seed, epoch)
    assert sorted(order_N.tolist()) == list(range(count))
    torch.rand(3)  # the state of the global generator decides nothing
    assert torch.equal(epoch_order(count, seed, epoch), order_N)


def test_every_epoch_and_every_seed_has_its_own_order() -> None:
    orders = {tuple(epoch_order(50, s, e).tolist()) for s in range(5) for e in range(5)}
    assert len(orders) == 25


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


@given(count=COUNTS, batch_size=st.integers(1, 40), world_size=st.integers(1, 9))
def test_ranks_together_take_every_example_once(
    count: int, batch_size: int, world_size: int
) -> None:
    order_N = epoch_order(count, seed=3, epoch=1)
    ranks = [rank_batches(order_N, batch_size, rank, world_size) for rank in range(world_size)]
    assert {len(batches) for batches in ranks} == {-(-count // batch_size)}
    for step, parts in enumerate(zip(*ranks, strict=True)):
        whole = order_N[step * batch_size : (step + 1) * batch_size].tolist()
        dealt = [RankShare(len(whole), rank, world_size) for rank in range(world_size)]
        sizes = [one.num_examples for one in dealt]
        assert max(sizes) - min(sizes) <= 1
        seen = [part.tolist() for part, size in zip(parts, sizes, strict=True) if size]
        assert sorted(place for part in seen for place in part) == sorted(whole)
        # One that is left without an example is shown the first.
        assert all(p.tolist() == whole[:1] for p, n in zip(parts, sizes, strict=True) if not n)


@given(examples=st.integers(1, 50), ranks=st.integers(1, 9))
def test_weights_of_ranks_make_the_mean_over_ranks_that_over_examples(
    examples: int, ranks: int
) -> None:
    loss_B = torch.arange(examples).double().square()
    dealt = [RankShare(examples, rank, ranks) for rank in range(ranks)]
    for parts in ([loss_B[one.rows] for one in dealt], [loss_B[one.neighbours] for one in dealt]):
        means = [one.weight * part.mean() for one, part in zip(dealt, parts, strict=True)]
        torch.testing.assert_close(torch.stack(means).mean(), loss_B.mean())


@given(count=COUNTS, batch_size=st.integers(1, 250))
def test_one_rank_takes_every_example(count: int, batch_size: int) -> None:
    batches = rank_batches(torch.arange(count), batch_size, rank=0, world_size=1)
    assert torch.cat(batches).tolist() == list(range(count))
    assert all(len(batch) == batch_size for batch in batches[:-1])


def test_a_global_batch_is_dealt_to_the_ranks_in_turn() -> None:
    batches = rank_batches(torch.arange(11), batch_size=4, rank=1, world_size=2)
    assert [batch.tolist() for batch in batches] == [[1, 3], [5, 7], [9]]
