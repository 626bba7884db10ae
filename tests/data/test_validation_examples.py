"""Validation examples: held out of train, or those that the protocol of a data set names."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch

from capsweep.data.batches import DeviceSplit
from capsweep.data.image_batches import ShiftedImages
from capsweep.data.images import LabelledImages, Splits
from capsweep.data.module import presented
from capsweep.errors import ConfigError, DataError

Noise = Callable[..., LabelledImages]


@dataclass
class Named:
    """A data set in memory."""

    splits: Splits

    def check(self, folder: str) -> None:
        """Nothing to find."""

    def read(self, folder: str) -> Splits:
        return self.splits


@pytest.fixture
def named(noise: Noise) -> Named:
    """Six examples to train on, four to test on and two to validate on, each of other labels."""
    train, test, validation = noise(6), noise(4), noise(2)
    test = LabelledImages(test.images_NCHW, test.labels_N + 10)
    validation = LabelledImages(validation.images_NCHW, validation.labels_N + 20)
    return Named(Splits(train, test, validation))


def parts(reader: Named, held_out: int, **declared: int) -> dict[str, DeviceSplit]:
    presenter = partial(ShiftedImages, shift=0)
    return presented(reader, "", presenter, held_out, torch.device("cpu"), declared or None)


def labels(part: DeviceSplit) -> list[int]:
    return part.evaluated(slice(0, len(part))).labels.tolist()


def test_those_that_are_named_validate_and_all_training_examples_train(named: Named) -> None:
    found = parts(named, 0, train=6, validation=2, test=4)
    assert labels(found["train"]) == [0, 1, 2, 3, 4, 5]
    assert labels(found["validation"]) == [20, 21]
    assert labels(found["test"]) == [10, 11, 12, 13]


def test_where_some_are_named_none_can_be_held_out(named: Named) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.validation must be 0 for .*, got 3$"):
        parts(named, 3)


@pytest.mark.parametrize("declared", [{}, {"validation": 3}])
def test_the_number_of_those_that_are_named_is_verified(
    named: Named, declared: dict[str, int]
) -> None:
    with pytest.raises(DataError, match=r"declared, .*'validation': 2.* read"):
        parts(named, 0, train=6, test=4, **declared)


def test_a_declared_number_of_examples_that_no_reader_names_is_refused(noise: Noise) -> None:
    plain = Named(Splits(noise(6), noise(4)))
    assert len(parts(plain, 2, train=6, test=4)["validation"]) == 2
    with pytest.raises(DataError, match=r"'validation': 2.* declared"):
        parts(plain, 0, train=6, validation=2, test=4)
