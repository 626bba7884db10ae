"""`dataset.test`: training images of one data set, test images of another."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch

from capsweep.config import compose
from capsweep.data import images  # pytest would take its TestedElsewhere for a test
from capsweep.data.affine import AffineTest
from capsweep.data.affnist import AffnistTest
from capsweep.data.image_batches import CroppedImages, ShiftedImages
from capsweep.data.images import LabelledImages, Splits
from capsweep.data.official import IdxReader
from capsweep.data.pairs import ComposedPairs
from capsweep.errors import DataError
from capsweep.training import build

Noise = Callable[..., LabelledImages]


@dataclass
class Source:
    """A data set in memory, which says what it was asked."""

    splits: Splits
    asked: list[str] = field(default_factory=list)

    def check(self, folder: str) -> None:
        self.asked.append(f"check {folder}")

    def read(self, folder: str) -> Splits:
        self.asked.append(f"read {folder}")
        return self.splits


@dataclass
class Reversed:
    """The data set's own test images, the last first; absent from one folder."""

    def check(self, folder: str) -> None:
        if folder == "without":
            raise DataError("the other test images are not there")

    def read(self, folder: str, test: LabelledImages) -> LabelledImages:
        self.check(folder)
        return test.select(torch.arange(len(test)).flip(0))


@pytest.fixture
def source(noise: Noise) -> Source:
    return Source(Splits(train=noise(6), test=noise(4)))


def test_training_images_are_the_readers_and_test_images_are_made_of_its_own(
    source: Source,
) -> None:
    splits = images.TestedElsewhere(source, Reversed()).read("here")
    assert splits.train is source.splits.train
    assert splits.test.labels_N.tolist() == [3, 2, 1, 0]
    assert source.asked == ["read here"]


def test_examples_that_a_data_set_validates_on_stay_its_own(noise: Noise) -> None:
    named = Splits(train=noise(6), test=noise(4), validation=noise(2))
    splits = images.TestedElsewhere(Source(named), Reversed()).read("here")
    assert splits.validation is named.validation
    assert splits.test.labels_N.tolist() == [3, 2, 1, 0]


def test_checking_looks_at_both(source: Source) -> None:
    images.TestedElsewhere(source, Reversed()).check("here")
    assert source.asked == ["check here"]
    with pytest.raises(DataError, match="not there"):
        images.TestedElsewhere(source, Reversed()).check("without")


@pytest.mark.parametrize(
    ("dataset", "test_reader"), [("affnist", AffnistTest), ("affnist_like", AffineTest)]
)
def test_a_data_set_with_a_test_section_is_tested_there(dataset: str, test_reader: type) -> None:
    reader = build.build_reader(compose.cell([f"dataset={dataset}"]).config)
    assert isinstance(reader, images.TestedElsewhere)
    assert isinstance(reader.reader, IdxReader)
    assert isinstance(reader.test, test_reader)


def test_a_data_set_without_one_is_tested_on_its_own() -> None:
    assert isinstance(build.build_reader(compose.cell(["dataset=mnist"]).config), IdxReader)


@pytest.mark.parametrize(
    ("dataset", "presents"),
    [
        ("cifar10", CroppedImages),
        ("multimnist", ComposedPairs),
        ("affnist", ShiftedImages),
        ("affnist_like", ShiftedImages),
        ("smallnorb", CroppedImages),
    ],
)
def test_batches_are_presented_by_the_class_that_the_data_set_names(
    dataset: str, presents: type
) -> None:
    presenter = build.build_presenter(compose.cell([f"dataset={dataset}"]).config)
    assert isinstance(presenter, partial)
    assert presenter.func is presents


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_without_one_they_are_shifted_by_so_many_pixels(noise: Noise, split: str) -> None:
    presenter = build.build_presenter(compose.cell(["dataset=digits", "dataset.shift=3"]).config)
    made = presenter(noise(5), split)
    assert isinstance(made, ShiftedImages)
    assert made.shift == 3
    assert made.images_NCHW.shape == (5, 1, 6, 5)  # on no canvas
