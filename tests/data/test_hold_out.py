"""Validation examples: exactly as many as asked, of every class its share."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capsweep.data.images import LabelledImages, hold_out, stratified_sample
from capsweep.errors import ConfigError

LABELS = st.lists(st.integers(0, 5), min_size=2, max_size=120)
SEEDS = st.integers(0, 2**32)


def numbered(labels: list[int]) -> LabelledImages:
    """Examples with these labels; the pixels of an image say its place."""
    place_N = torch.arange(len(labels))
    pixels_N4 = torch.stack([place_N // 256, place_N % 256], dim=1).repeat(1, 2).byte()
    return LabelledImages(pixels_N4.reshape(-1, 1, 2, 2), torch.tensor(labels))


def places(examples: LabelledImages) -> list[int]:
    """Where the examples stood in the whole."""
    pixels_N4 = examples.images_NCHW.flatten(1).long()
    return (pixels_N4[:, 0] * 256 + pixels_N4[:, 1]).tolist()


@given(labels=LABELS, seed=SEEDS, data=st.data())
def test_the_parts_are_exact_disjoint_complete_and_in_order(
    labels: list[int], seed: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, len(labels) - 1))
    kept, held = hold_out(numbered(labels), count, seed)
    assert len(held) == count
    assert sorted(places(kept) + places(held)) == list(range(len(labels)))
    for part in (kept, held):
        assert places(part) == sorted(places(part))
        assert part.labels_N.tolist() == [labels[place] for place in places(part)]


@given(labels=LABELS, seed=SEEDS, data=st.data())
def test_no_class_gives_an_example_before_another_class_has_given_its_share(
    labels: list[int], seed: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(labels) - 1))
    _, held = hold_out(numbered(labels), count, seed)
    taken, left = [], []
    for label in set(labels):
        size, given_up = labels.count(label), held.labels_N.tolist().count(label)
        # The r-th example of a class of n stands for the share (r - 1/2) / n of it.
        taken += [(given_up - 0.5) / size] if given_up else []
        left += [(given_up + 0.5) / size] if given_up < size else []
    assert max(taken) <= min(left)


@given(size=st.integers(1, 20), num_classes=st.integers(1, 10), seed=SEEDS, data=st.data())
def test_equal_classes_give_equal_shares(
    size: int, num_classes: int, seed: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, size * num_classes - 1))
    _, held = hold_out(numbered(list(range(num_classes)) * size), count, seed)
    given_up = [held.labels_N.tolist().count(label) for label in range(num_classes)]
    assert max(given_up) - min(given_up) <= 1


def test_the_split_is_a_function_of_the_seed() -> None:
    examples = numbered([0, 1, 2] * 30)
    first, again, other = (places(hold_out(examples, 20, seed)[1]) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_larger_sample_contains_the_smaller_one() -> None:
    labels = np.arange(90) % 4
    small, large = (set(stratified_sample(labels, count, seed=5)) for count in (10, 30))
    assert small < large


@pytest.mark.parametrize("count", [6, 7, 100])
def test_a_count_that_leaves_nothing_to_train_on_is_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"dataset\.validation must be < 6 .*got {count}"):
        hold_out(numbered([0, 1] * 3), count, seed=0)
