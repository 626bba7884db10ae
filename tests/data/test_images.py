"""Labelled images and splits: embedded digits, numbers whose class is their sign, balanced and to
the bit x and -x, examples held out, and those that are named.
"""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from small_data import make_noise, reader_of, refuses

from capsweep.config import compose
from capsweep.data.batches import DeviceSplit
from capsweep.data.digits import draw_on_canvas
from capsweep.data.image_batches import ShiftedImages
from capsweep.data.images import LabelledImages, Reader, Splits, hold_out, prepare_splits
from capsweep.errors import ConfigError, DataError
from capsweep.training import build

LABELS = st.lists(st.integers(0, 5), min_size=2, max_size=120)


@pytest.fixture(scope="module")
def digits() -> Splits:
    """As the configuration declares them."""
    return reader_of("dataset=digits").read("")


def hash_images(images_NCHW: torch.Tensor) -> list[bytes]:
    """The images as hashable values, in order."""
    return [image.numpy().tobytes() for image in images_NCHW]


def test_all_digits_are_in_one_of_two_stratified_splits(digits: Splits) -> None:
    test_K, train_K = digits.test.labels_N.bincount(), digits.train.labels_N.bincount()
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    assert (train_K + test_K).tolist() == np.bincount(load_digits().target).tolist()
    assert ((test_K - (train_K + test_K) * 360 / 1797).abs() <= 1).all()
    train, test = (set(hash_images(part.images_NCHW)) for part in (digits.train, digits.test))
    assert (len(train), len(test)) == (1437, 360)
    assert not train & test
    # A change of these orphans users' results without a change of their signatures.
    assert digits.test.labels_N[:12].tolist() == [5, 1, 3, 9, 6, 0, 0, 0, 1, 3, 4, 4]
    assert digits.train.labels_N[:12].tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 0, 1, 2]


def test_a_digest_is_of_every_pixel_label_and_shape_and_of_nothing_else(digits: Splits) -> None:
    images_NCHW, labels_N = digits.test.images_NCHW, digits.test.labels_N
    pixel_NCHW = images_NCHW.clone()
    pixel_NCHW[-1, 0, -1, -1] += 1
    others = [
        LabelledImages(pixel_NCHW, labels_N),
        LabelledImages(images_NCHW, labels_N.roll(1)),
        LabelledImages(images_NCHW.reshape(360, 1, 14, 56), labels_N),
        digits.test.select(torch.arange(359)),
    ]
    assert len({digits.test.digest, *(each.digest for each in others)}) == 5
    again = LabelledImages(images_NCHW.clone().to(memory_format=torch.channels_last), labels_N)
    assert again.digest == digits.test.digest
    assert digits.digests == {"train": digits.train.digest, "test": digits.test.digest}
    # Results of different versions are compared by it.
    few = LabelledImages(torch.zeros(1, 1, 1, 2, dtype=torch.uint8), torch.tensor([3]))
    assert few.digest == "f85bc4284b543a058aad557cc03dda217a29ea642ed4ee97695725bb5d0d8ecd"


def test_digits_look_like_those_of_mnist_and_keep_their_labels(digits: Splits) -> None:
    source = load_digits()
    canvas_NCHW = draw_on_canvas(torch.from_numpy(source.images))
    label_of = dict(zip(hash_images(canvas_NCHW), source.target.tolist(), strict=True))
    for examples in (digits.train, digits.test):
        images_NCHW = examples.images_NCHW
        assert images_NCHW.shape[1:] == (1, 28, 28)
        assert images_NCHW.dtype == torch.uint8
        box_NCHW = images_NCHW[:, :, 4:24, 4:24]
        assert images_NCHW.sum() == box_NCHW.sum()  # a border of 4 pixels is zero
        assert box_NCHW.amax() == 255
        assert [label_of[key] for key in hash_images(images_NCHW)] == examples.labels_N.tolist()


@pytest.fixture(scope="module")
def numbers() -> Splits:
    return reader_of("dataset=sign").read("")


def test_every_number_is_in_one_of_two_splits_that_are_symmetric_and_balanced(
    numbers: Splits,
) -> None:
    assert (len(numbers.train), len(numbers.test), numbers.validation) == (192, 64, None)
    bytes_N = torch.cat([part.images_NCHW.flatten() for part in (numbers.train, numbers.test)])
    assert torch.equal(bytes_N.long().sort().values, torch.arange(256))
    for part in (numbers.train, numbers.test):
        bytes_N = part.images_NCHW.flatten().long()
        assert torch.equal(255 - bytes_N.flip(0), bytes_N)
        assert torch.equal(part.labels_N, (bytes_N >= 128).long())
        assert 2 * int(part.labels_N.sum()) == len(part)


@pytest.mark.parametrize("dataset", ["digits", "sign"])
def test_other_images_than_the_declared_ones_are_refused(dataset: str, tmp_path: Path) -> None:
    message = r"dataset\.reader\.sha256 is 0{64}, but .* [0-9a-f]{64}; .*make setup"
    reader = reader_of(f"dataset={dataset}", f"dataset.reader.sha256={'0' * 64}")
    refuses(reader, tmp_path, message)


def test_a_tested_number_and_its_negative_differ_in_their_sign_bit_alone() -> None:
    config = compose.cell(["experiment=sign"]).config
    test = build.load_splits(config, "", torch.device("cpu"))["test"]
    batch = test.evaluation_batch(slice(0, 64))
    x_B = batch.images_BCHW.flatten()
    assert torch.equal(x_B.flip(0), -x_B)
    assert -1 <= x_B.min() < x_B.max() <= 1
    assert x_B.all()
    assert torch.equal(batch.labels, (x_B > 0).long())


def number_images(labels: list[int]) -> LabelledImages:
    """Examples with these labels; the pixels of an image say its place."""
    place_N = torch.arange(len(labels))
    pixels_N4 = torch.stack([place_N // 256, place_N % 256], dim=1).repeat(1, 2).byte()
    return LabelledImages(pixels_N4.reshape(-1, 1, 2, 2), torch.tensor(labels))


def list_places(examples: LabelledImages) -> list[int]:
    """Where the examples stood in the whole."""
    pixels_N4 = examples.images_NCHW.flatten(1).long()
    return (pixels_N4[:, 0] * 256 + pixels_N4[:, 1]).tolist()


@given(labels=LABELS, data=st.data())
def test_the_parts_are_exact_disjoint_complete_and_in_order(
    labels: list[int], data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, len(labels) - 1))
    kept, held = hold_out(number_images(labels), count)
    assert list_places(held) == list_places(hold_out(number_images(labels), count)[1])
    assert len(held) == count
    assert sorted(list_places(kept) + list_places(held)) == list(range(len(labels)))
    for part in (kept, held):
        assert list_places(part) == sorted(list_places(part))
        assert part.labels_N.tolist() == [labels[place] for place in list_places(part)]


@given(labels=LABELS, data=st.data())
def test_no_class_gives_an_example_before_another_class_has_given_its_share(
    labels: list[int], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(labels) - 1))
    _, held = hold_out(number_images(labels), count)
    taken, left = [], []
    for label in set(labels):
        size, given_up = labels.count(label), held.labels_N.tolist().count(label)
        # The r-th example of a class of n stands for the share (r - 1/2) / n of it.
        taken += [(given_up - 0.5) / size] if given_up else []
        left += [(given_up + 0.5) / size] if given_up < size else []
    assert max(taken) <= min(left)


@pytest.mark.parametrize("count", [6, 100])
def test_a_count_that_leaves_nothing_to_train_on_is_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"dataset\.validation must be < 6 .*got {count}"):
        hold_out(number_images([0, 1] * 3), count)


def keep(*splits: LabelledImages) -> Reader:
    """A data set in memory: train, test and perhaps validation."""
    return cast(Reader, SimpleNamespace(read=lambda folder: Splits(*splits)))


@pytest.fixture
def named() -> Reader:
    """Six examples to train on, four to test on and two to validate on, each of other labels."""
    test, validation = make_noise(4, labels=[10, 11, 12, 13]), make_noise(2, labels=[20, 21])
    return keep(make_noise(6), test, validation)


def split_images(reader: Reader, held_out: int, **declared: int) -> dict[str, list[int]]:
    """The labels of each split, prepared."""
    presenter = partial(ShiftedImages, shift=0)
    dataset = {"validation": held_out, "examples": declared, "image_shape": [1, 6, 5]}
    splits = prepare_splits(reader.read(""), presenter, dataset, torch.device("cpu"))

    def list_labels(part: DeviceSplit) -> list[int]:
        return part.evaluation_batch(slice(0, len(part))).labels.tolist()

    return {name: list_labels(part) for name, part in splits.items()}


def test_those_that_are_named_validate_and_all_training_examples_train(named: Reader) -> None:
    splits = split_images(named, 0, train=6, validation=2, test=4)
    assert splits == {"train": [*range(6)], "validation": [20, 21], "test": [10, 11, 12, 13]}


@pytest.mark.parametrize("declared", [{}, {"validation": 3}])
def test_the_number_of_those_that_are_named_is_verified(
    named: Reader, declared: dict[str, int]
) -> None:
    with pytest.raises(DataError, match=r"declares .*, but .*'validation': 2.* were read"):
        split_images(named, 0, train=6, test=4, **declared)


def test_a_declared_number_of_examples_that_no_reader_names_is_refused() -> None:
    plain = keep(make_noise(6), make_noise(4))
    assert len(split_images(plain, 2, train=6, test=4)["validation"]) == 2
    with pytest.raises(DataError, match=r"declares .*'validation': 2.*, but"):
        split_images(plain, 0, train=6, validation=2, test=4)
