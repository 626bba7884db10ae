"""Like affNIST: each test digit transformed once, as a function of its place, and never cut off."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage

from capsweep.config import compose
from capsweep.data.affine import AffineTest
from capsweep.data.images import LabelledImages
from capsweep.errors import ConfigError
from capsweep.storage.files import hash_bytes
from capsweep.training import build

# Of the 360 transformed test digits of dataset=affnist_like dataset/source=digits.
EMBEDDED = "f8f74f3b860f2fb42a78bf05b8ff10402c30fbf507fea9bf0b3f65d36a40e6ba"

Matrix = np.ndarray
CANVAS = 40


@pytest.fixture(scope="module")
def digits() -> LabelledImages:
    """The 360 embedded test digits, 28x28."""
    return build.build_reader(compose.cell(["dataset=digits"]).config).read("").test


@pytest.fixture(scope="module")
def squares() -> LabelledImages:
    """20x20 pixels of full ink in the middle of 28x28: whatever is cut off of them shows."""
    images_NCHW = torch.zeros(400, 1, 28, 28, dtype=torch.uint8)
    images_NCHW[:, :, 4:24, 4:24] = 255
    return LabelledImages(images_NCHW, torch.arange(400) % 10)


def transform(**changed: Any) -> AffineTest:
    default = {"rotation": 20.0, "shear": 0.2, "scale": [0.8, 1.2], "canvas": CANVAS, "seed": 0}
    return AffineTest(**{**default, **changed})


def by_scipy(image_HW: np.ndarray, matrix_VU: Matrix, shift_V: Matrix, canvas: int) -> np.ndarray:
    """The same transformation in floating point: from output to input places."""
    inverse_UV = np.linalg.inv(matrix_VU)
    middle, half = (np.array(image_HW.shape) - 1) / 2, (canvas - 1) / 2
    offset_U = middle - inverse_UV @ (half + shift_V)
    padded = np.pad(image_HW.astype(float), 2)  # scipy's zeros begin half a pixel too early
    return ndimage.affine_transform(padded, inverse_UV, offset_U + 2, (canvas, canvas), order=1)


def test_every_digit_is_the_affine_transformation_of_its_parameters(
    digits: LabelledImages,
) -> None:
    made, few = transform(), digits.select(torch.arange(60))
    matrix_NVU, shift_NV = made.draw_transformations(few.images_NCHW.numpy())
    found = made.read("", few)
    assert torch.equal(found.labels_N, few.labels_N)
    assert found.images_NCHW.shape == (60, 1, CANVAS, CANVAS)
    assert found.images_NCHW.dtype == torch.uint8
    for image_CHW, moved_CHW, matrix_VU, shift_V in zip(
        few.images_NCHW, found.images_NCHW, matrix_NVU, shift_NV, strict=True
    ):
        expected_HW = by_scipy(image_CHW[0].numpy(), matrix_VU, shift_V, CANVAS)
        # Places are rounded to 1/256 of a pixel, over which intensity changes by at most 1.
        assert np.abs(moved_CHW[0].numpy() - expected_HW).max() <= 1.5


def test_no_ink_is_cut_off_wherever_a_digit_is_put(squares: LabelledImages) -> None:
    matrix_NVU, shift_NV = transform().draw_transformations(squares.images_NCHW.numpy())
    reach = 9.5 + 1  # pixels from the middle of a square to that of its corner, and one of blur
    corners_VK = reach * np.array([[-1, -1, 1, 1], [-1, 1, -1, 1]])
    place_NVK = matrix_NVU @ corners_VK + shift_NV[:, :, None]
    beyond = (CANVAS + 1) / 2  # the first place from the canvas's middle that does not show
    assert beyond - 0.1 < np.abs(place_NVK).max() <= beyond


def test_the_transformation_of_an_image_is_a_function_of_its_place(
    digits: LabelledImages,
) -> None:
    whole = transform().read("", digits)
    first = transform().read("", digits.select(torch.arange(50)))
    assert torch.equal(first.images_NCHW, whole.images_NCHW[:50])
    other = transform(seed=1).read("", digits)
    same_N = (other.images_NCHW == whole.images_NCHW).flatten(1).all(dim=1)
    assert not same_N.any()


def test_the_embedded_digits_are_the_same_on_every_machine() -> None:
    chosen = ["dataset=affnist_like", "dataset/source=digits", "dataset.validation=100"]
    config = compose.cell(chosen).config
    test = build.build_reader(config).read("").test
    assert test.images_NCHW.shape == (360, 1, CANVAS, CANVAS)
    assert hash_bytes(test.images_NCHW.numpy().tobytes()) == EMBEDDED


@pytest.mark.mnist
def test_all_test_digits_of_mnist_have_room(data_folder: Path) -> None:
    config = compose.cell(["dataset=affnist_like", "dataset.reader.mirrors=[]"]).config
    splits = build.build_reader(config).read(str(data_folder))
    assert splits.train.images_NCHW.shape == (60_000, 1, 28, 28)
    assert splits.test.images_NCHW.shape == (10_000, 1, CANVAS, CANVAS)
    assert splits.test.images_NCHW.amax(dim=(1, 2, 3)).min() > 100


def test_a_canvas_without_room_for_the_digits_is_refused(squares: LabelledImages) -> None:
    message = r"dataset\.batches\.canvas=28 is too small for \d+ of the 400 .*raise it"
    with pytest.raises(ConfigError, match=message):
        transform(canvas=28).read("", squares)
    transform(rotation=0.0, shear=0.0, scale=[1.0, 1.0], canvas=20).read("", squares)
