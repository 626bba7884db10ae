"""The embedded digits: real, fixed, split once and for all."""

import pytest
import torch
from sklearn.datasets import load_digits

from capsweep.config import compose
from capsweep.data.images import LabelledImages, Splits
from capsweep.data.official import DigitsReader, draw_on_canvas
from capsweep.errors import DataError

DECLARED = compose.cell(["dataset=digits"]).config["dataset"]["reader"]["sha256"]
FIRST_TRAIN = [0, 1, 2, 3, 4, 6, 7, 8, 9, 0, 1, 2]
FIRST_TEST = [5, 1, 3, 9, 6, 0, 0, 0, 1, 3, 4, 4]


@pytest.fixture(scope="module")
def digits() -> Splits:
    """As the configuration declares them."""
    reader = DigitsReader(DECLARED)
    reader.check("")
    return reader.read("")


def keys(examples: LabelledImages) -> set[bytes]:
    """The images as hashable values."""
    return {image.numpy().tobytes() for image in examples.images_NCHW}


def test_all_digits_are_in_one_of_two_splits(digits: Splits) -> None:
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    labels_N = torch.cat([digits.train.labels_N, digits.test.labels_N])
    assert labels_N.dtype == torch.int64
    official_N = torch.from_numpy(load_digits().target)
    assert torch.equal(labels_N.bincount(), official_N.bincount())


def test_no_test_image_is_among_the_training_images(digits: Splits) -> None:
    train, test = keys(digits.train), keys(digits.test)
    assert (len(train), len(test)) == (1437, 360)
    assert not train & test


def test_the_split_is_fixed(digits: Splits) -> None:
    again = DigitsReader(DECLARED).read("elsewhere")
    assert torch.equal(again.test.images_NCHW, digits.test.images_NCHW)
    assert torch.equal(again.train.images_NCHW, digits.train.images_NCHW)
    # A change of these orphans users' results without a change of their signatures.
    assert digits.test.labels_N[:12].tolist() == FIRST_TEST
    assert digits.train.labels_N[:12].tolist() == FIRST_TRAIN


def test_the_split_is_stratified(digits: Splits) -> None:
    test_K = digits.test.labels_N.bincount()
    all_K = test_K + digits.train.labels_N.bincount()
    assert len(all_K) == 10
    assert ((test_K - all_K * 360 / 1797).abs() <= 1).all()


def test_images_look_like_those_of_mnist(digits: Splits) -> None:
    for examples in (digits.train, digits.test):
        images_NCHW = examples.images_NCHW
        assert images_NCHW.shape[1:] == (1, 28, 28)
        assert images_NCHW.dtype == torch.uint8
        box_NCHW = images_NCHW[:, :, 4:24, 4:24]
        assert images_NCHW.sum() == box_NCHW.sum()  # a border of 4 pixels is zero
        assert box_NCHW.amax() == 255


def test_each_image_stays_with_its_label(digits: Splits) -> None:
    source = load_digits()
    canvas_NCHW = draw_on_canvas(torch.from_numpy(source.images))
    label_of = dict(zip(keys_in_order(canvas_NCHW), source.target.tolist(), strict=True))
    for examples in (digits.train, digits.test):
        found = [label_of[key] for key in keys_in_order(examples.images_NCHW)]
        assert found == examples.labels_N.tolist()


def keys_in_order(images_NCHW: torch.Tensor) -> list[bytes]:
    """The images as hashable values, in order."""
    return [image.numpy().tobytes() for image in images_NCHW]


def test_even_images_stay_even_on_the_canvas() -> None:
    levels_N = torch.tensor([0.0, 4.0, 16.0])
    canvas_NCHW = draw_on_canvas(levels_N[:, None, None].expand(3, 8, 8))
    for image_HW, level in zip(canvas_NCHW[:, 0], (0, 64, 255), strict=True):
        assert image_HW[4:24, 4:24].eq(level).all()
        assert image_HW.count_nonzero() == (400 if level else 0)


@pytest.mark.parametrize("call", ["check", "read"])
def test_other_digits_than_the_declared_ones_are_refused(call: str) -> None:
    reader = DigitsReader("0" * 64)
    with pytest.raises(
        DataError, match=r"load_digits has sha256 .*digits\.yaml declares 0+;.*make"
    ):
        getattr(reader, call)("")
