"""Batches: every example once, each a function of its place, whoever asks for it; none makes the
host wait for the device: nothing is read from it, nothing is copied to it.
"""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from only_on_device import DEVICE, OnlyOnDevice
from small_data import epoch, make_noise
from torch import Tensor

from capsweep.config import compose
from capsweep.data.batches import (
    Batch,
    DeviceSplit,
    EvaluationLoader,
    TrainLoader,
    draw_epoch_order,
    generator_of,
    seed_of,
    to_unit,
)
from capsweep.data.image_batches import ShiftedImages
from capsweep.data.images import LabelledImages
from capsweep.data.pairs import ComposedPairs, PairSource
from capsweep.data.windows import Windows
from capsweep.training import build


def equal(one: list[Batch], other: list[Batch]) -> bool:
    """Bitwise equality of all batches: images, labels and targets, or None."""
    return len(one) == len(other) and all(
        (a is None and b is None) or torch.equal(a, b)
        for ours, theirs in zip(one, other, strict=True)
        for a, b in zip(ours[:3], theirs[:3], strict=True)
    )


def labels(batches: list[Batch]) -> list[int]:
    """Of all batches, in order."""
    return [label for batch in batches for label in batch.labels.tolist()]


def test_an_epoch_has_every_example_once_with_its_own_image() -> None:
    examples = make_noise(23)
    loader = TrainLoader(ShiftedImages(examples, "train", 0), batch_size=5, seed=1)
    batches = epoch(loader, 0)
    assert len(loader) == len(batches)
    assert [len(batch.labels) for batch in batches] == [5, 5, 5, 5, 3]
    assert sorted(labels(batches)) == list(range(23))
    for batch in batches:
        expected_BCHW = to_unit(examples.images_NCHW[batch.labels])
        assert torch.equal(batch.images_BCHW, expected_BCHW)


def test_an_epoch_is_a_function_of_seed_and_epoch() -> None:
    def fresh(seed: int) -> TrainLoader:
        return TrainLoader(ShiftedImages(make_noise(24), "train", 2), 8, seed)

    used = fresh(1)
    for number in range(3):
        epoch(used, number)
    third = epoch(used, 3)
    assert equal(third, epoch(fresh(1), 3))  # as after a resume
    assert equal(third, epoch(used, 3))
    assert not equal(third, epoch(used, 4))
    assert not equal(third, epoch(fresh(2), 3))


@pytest.mark.parametrize("made_at_once", [2, 3, 100])
def test_batches_made_at_once_are_those_made_one_by_one(made_at_once: int) -> None:
    examples = make_noise(29, height=6, width=6)
    presenters = [
        ShiftedImages(examples, "train", 2),
        ComposedPairs(examples, "train", seed=0, margin=1, shift=1, pairs=10, test_examples=5),
    ]
    for presented in presenters:
        loader = TrainLoader(presented, 4, seed=1)
        one_by_one = epoch(loader, 1)
        loader.made_at_once = made_at_once
        assert equal(epoch(loader, 1), one_by_one)


@given(count=st.integers(1, 60), batch_size=st.integers(1, 20))
def test_evaluation_is_in_the_order_of_the_data_set(count: int, batch_size: int) -> None:
    examples = make_noise(count)
    loader = EvaluationLoader(ShiftedImages(examples, "test", 2), batch_size)
    batches = list(loader)
    assert len(loader) == len(batches)
    assert labels(batches) == list(range(count))
    images_NCHW = torch.cat([batch.images_BCHW for batch in batches])
    assert torch.equal(images_NCHW, to_unit(examples.images_NCHW))


def test_places_have_their_own_seeds() -> None:
    places = [(0, "order", 1), (0, "shift", 1), (1, "order", 0), (0, "order", 11), ("0", "order1")]
    assert len({seed_of(*place) for place in places}) == len(places)
    assert all(0 <= seed_of(*place) < 2**63 for place in places)
    one, same = (torch.rand(4, generator=generator_of(7, "weights")) for _ in range(2))
    assert torch.equal(one, same)


def test_the_seed_of_a_place_is_the_same_on_every_machine() -> None:
    # A change of these changes every result without a change of its signature.
    assert seed_of(0, "order", 0) == 3955691223199900983
    assert draw_epoch_order(8, 0, 0).tolist() == [7, 5, 6, 0, 3, 4, 1, 2]


DATASETS: Mapping[str, tuple[int, int, int]] = {
    **dict.fromkeys(("mnist", "affnist", "affnist_like", "multimnist"), (1, 28, 28)),
    **dict.fromkeys(("cifar10", "svhn"), (3, 32, 32)),
    "smallnorb": (2, 48, 48),
}
COUNT = 50


def moved(thing: Any) -> Any:
    """All tensors of an object on the device; made on the CPU, where a constructor may read."""
    for name, value in vars(thing).items():
        if isinstance(value, Tensor):
            setattr(thing, name, value.to(DEVICE))
        elif isinstance(value, Windows):
            setattr(thing, name, Windows(value.view.to(DEVICE)))
        elif isinstance(value, torch.device):
            setattr(thing, name, DEVICE)
        elif isinstance(value, PairSource):
            moved(value)
    return thing


def present(dataset: str, split: str) -> DeviceSplit:
    """Images of zeros as a data set presents them, on the device."""
    config = compose.cell([f"dataset={dataset}"]).config
    images_NCHW = torch.zeros(COUNT, *DATASETS[dataset], dtype=torch.uint8)
    examples = LabelledImages(images_NCHW, torch.arange(COUNT) % 5)
    return moved(build.build_presenter(config)(examples, split))


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_batch_stays_on_the_device_and_a_whole_epoch_reads_nothing(dataset: str) -> None:
    train, *evaluated = (present(dataset, split) for split in ("train", "validation", "test"))
    make_batch, index_B = train.prepare_epoch(0, 3), torch.arange(8, device=DEVICE)
    with OnlyOnDevice():
        batches = [make_batch(index_B), *(part.evaluation_batch(slice(0, 8)) for part in evaluated)]
    assert [len(batch.images_BCHW) for batch in batches] == [8, 8, 8]
    loader = TrainLoader(train, batch_size=4, seed=0)
    assert loader.made_at_once > 1  # as on every device but the CPU
    assert [len(batch.images_BCHW) for batch in loader] == [4] * (COUNT // 4) + [COUNT % 4]
