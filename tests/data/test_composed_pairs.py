"""MultiMNIST as batches: epochs are stretches of one sequence; test sets have a fingerprint."""

from pathlib import Path

import pytest
import torch
from small_data import epoch, make_noise
from torch import Tensor

from capsweep.config import compose
from capsweep.data.batches import Batch, DeviceSplit, EvaluationLoader, Split, TrainLoader
from capsweep.data.images import LabelledImages
from capsweep.data.pairs import ComposedPairs, PairSource
from capsweep.training import build

COUNT, PAIRS = 24, 3
EXAMPLES = make_noise(COUNT, height=6, width=6, labels=torch.arange(COUNT) * 7 % 10)

# Of all images and labels. A change of these makes old MultiMNIST results incomparable.
FIRST_100_OF_DIGITS = "611353f3c5a9c242e4048ceb65054bf1a9d31a25afb7ddd80f2f59ef48fcf5c5"
FIRST_10_000_OF_MNIST = "f4d3040cedf250a4686de5735fc25ee7499d8fc6a6fa81b8b5755c153fde9746"


def composed(
    split: str = "train", tested: LabelledImages = EXAMPLES, **changed: int
) -> ComposedPairs:
    sizes = {"seed": 0, "margin": 1, "shift": 1, "pairs": PAIRS, "test_examples": 50}
    return ComposedPairs(tested, split, **{**sizes, **changed})


def shown(batches: list[Batch]) -> list[bytes]:
    """Each example as bytes: image, labels, targets."""
    return [
        b"".join(part.numpy().tobytes() for part in (image, labels, targets))
        for batch in batches
        for image, labels, targets in zip(*batch[:3], strict=True)
    ]


def stretch(start: int, stop: int, split: Split = "train") -> list[bytes]:
    """Examples start .. stop - 1 of the sequence of a split, made without loader and epochs."""
    pairs = PairSource(EXAMPLES, split, 0, 1, 1).compose_pairs(torch.arange(start, stop))
    images, targets = pairs.images_BCHW.float() / 255, pairs.digits_BLCHW.float() / 255
    return shown([Batch(images, pairs.labels_BL, targets)])


def test_an_epoch_is_the_next_stretch_of_the_sequence() -> None:
    for number in range(PAIRS):
        batches = epoch(TrainLoader(composed(), 5, seed=1), number)
        expected = stretch(number * COUNT, (number + 1) * COUNT)
        assert sorted(shown(batches)) == sorted(expected)


def test_after_so_many_epochs_as_there_are_pairs_the_examples_repeat_in_another_order() -> None:
    loader = TrainLoader(composed(), 5, seed=1)
    first, again = shown(epoch(loader, 0)), shown(epoch(loader, PAIRS))
    assert sorted(again) == sorted(first)
    assert again != first
    assert sorted(shown(epoch(loader, 1))) != sorted(first)


def test_test_examples_are_the_first_so_many_of_the_sequence_in_order() -> None:
    test = composed("test")
    assert len(test) == 50  # more than twice the digits: each is a base digit several times
    for batch_size in (7, 50, 500):
        batches = list(EvaluationLoader(test, batch_size))
        assert shown(batches) == stretch(0, 50, "test")


def parts_of(overrides: list[str], folder: str = "") -> dict[str, DeviceSplit]:
    """The splits of dataset=multimnist as a cell would see them."""
    config = compose.cell(["dataset=multimnist", *overrides]).config
    return build.load_splits(config, folder, torch.device("cpu"))


DIGITS = ["dataset/source=digits", "dataset.batches.test_examples=100"]


def test_validation_pairs_are_of_held_out_digits_and_training_pairs_of_the_others() -> None:
    parts = parts_of([*DIGITS, "dataset.validation=100"])
    sizes = {"train": 1337, "validation": 100, "test": 100}
    assert {name: len(part) for name, part in parts.items()} == sizes
    alone = {name: digits_alone(part) for name, part in parts.items()}
    assert len(alone["validation"]) == 100
    assert not alone["validation"] & alone["train"]
    assert not alone["test"] & alone["train"]


def digits_alone(part: DeviceSplit) -> set[bytes]:
    """All digits that its pairs are made of, wherever they are shifted to."""
    batch = part.evaluation_batch(slice(0, len(part)))
    assert batch.targets_BLCHW is not None
    return {in_corner(digit_HW) for digit_HW in batch.targets_BLCHW.flatten(0, 2)}


def in_corner(image_HW: Tensor) -> bytes:
    rows, columns = image_HW.any(dim=1).nonzero(), image_HW.any(dim=0).nonzero()
    return (
        image_HW[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].numpy().tobytes()
    )


def test_the_test_set_of_the_embedded_digits_is_the_same_on_every_machine() -> None:
    test = parts_of(DIGITS)["test"]
    assert isinstance(test, ComposedPairs)
    assert test.fingerprint() == FIRST_100_OF_DIGITS


@pytest.mark.mnist
def test_the_test_set_of_mnist_is_the_same_on_every_machine(data_folder: Path) -> None:
    test = parts_of(["dataset.reader.mirrors=[]"], str(data_folder))["test"]
    assert isinstance(test, ComposedPairs)
    assert len(test) == 10_000
    assert test.fingerprint() == FIRST_10_000_OF_MNIST


def test_a_fingerprint_changes_with_everything_that_is_tested_on() -> None:
    def fingerprint(tested: LabelledImages = EXAMPLES, **changed: int) -> str:
        return composed("test", tested, **{"test_examples": 1500, **changed}).fingerprint()

    images_NCHW, labels_N = EXAMPLES.images_NCHW.clone(), EXAMPLES.labels_N.clone()
    images_NCHW[5, 0, 2, 2] ^= 1
    labels_N[labels_N == 9] = 10  # a class of its own, in the place its class had
    pixel = LabelledImages(images_NCHW, EXAMPLES.labels_N)
    label = LabelledImages(EXAMPLES.images_NCHW, labels_N)
    others = [
        fingerprint(pixel),
        fingerprint(label),
        fingerprint(seed=1),
        fingerprint(test_examples=1499),
    ]
    assert fingerprint() == fingerprint()
    assert len({fingerprint(), *others}) == 5
