"""Photographs: each step of the jitter as TensorFlow has it, drawn as a function of its place."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from small_data import make_noise

from capsweep.data.batches import generator_of
from capsweep.data.image_batches import CroppedImages, standardise_images
from capsweep.data.images import LabelledImages
from capsweep.errors import ConfigError

SIDE, CROP, COUNT = 9, 6, 40
SLACK = SIDE - CROP
PHOTOGRAPHS = make_noise(COUNT, channels=3, height=SIDE, width=SIDE)
STILL = {"flip": False, "brightness": 0.0, "contrast": [1.0, 1.0], "mean_over": "crop"}
JITTER = {"flip": True, "brightness": 63.0, "contrast": [0.2, 1.8], "mean_over": "image"}


def cropped(examples: LabelledImages, split: str = "train", **changed: Any) -> CroppedImages:
    still = {**STILL, "crop": CROP, "standardise": False}
    return CroppedImages(examples, split, **{**still, **changed})


def standard(image_CHW: np.ndarray) -> np.ndarray:
    """tf.image.per_image_standardization of one image."""
    deviation = max(image_CHW.std(), 1 / math.sqrt(image_CHW.size))
    return (image_CHW - image_CHW.mean()) / deviation


def jittered(
    whole_CHW: np.ndarray,
    place: tuple[int, int],
    is_flipped: bool,
    contrast: float,
    brightness: float,
    mean_over: str,
) -> np.ndarray:
    """One training image of 0..255 as the authors have it: the brightness is added first. Contrast
    keeps the mean, so that the order of the two changes nothing.
    """
    top, left = place
    image = whole_CHW[:, top : top + CROP, left : left + CROP].astype(float)
    if is_flipped:
        image = image[:, :, ::-1]
    result = np.empty_like(image)
    for channel, plane_HW in enumerate(image):
        brighter_HW = plane_HW + brightness
        mean = (whole_CHW[channel] + brightness if mean_over == "image" else brighter_HW).mean()
        result[channel] = (brighter_HW - mean) * contrast + mean
    return result


@pytest.mark.parametrize("mean_over", ["image", "crop"])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("standardise", [False, True])
def test_training_images_are_cropped_mirrored_jittered_and_standardised(
    mean_over: str, flip: bool, standardise: bool
) -> None:
    made = cropped(
        PHOTOGRAPHS, **{**JITTER, "flip": flip, "mean_over": mean_over, "standardise": standardise}
    )
    found_NCHW = made.prepare_epoch(3, 2)(torch.arange(COUNT)).images_BCHW.numpy()
    # The draws of an epoch, in their order; what is made of them is worked out one by one.
    generator = generator_of(3, "crop", 2)
    places_N2 = torch.randint(SLACK + 1, (COUNT, 2), generator=generator)
    uniform_3N = torch.rand((3, COUNT), generator=generator).double()
    for n in range(COUNT):
        image = jittered(
            PHOTOGRAPHS.images_NCHW[n].numpy(),
            tuple(places_N2[n].tolist()),
            is_flipped=flip and float(uniform_3N[0, n]) < 0.5,
            brightness=63 * (2 * float(uniform_3N[1, n]) - 1),
            contrast=0.2 + 1.6 * float(uniform_3N[2, n]),
            mean_over=mean_over,
        )
        expected = standard(image) if standardise else image / 255
        np.testing.assert_allclose(found_NCHW[n], expected, atol=2e-5)


@pytest.mark.parametrize("standardise", [False, True])
def test_evaluation_is_the_crop_in_the_middle_without_jitter(standardise: bool) -> None:
    for split in ("validation", "test"):
        made = cropped(PHOTOGRAPHS, split, **{**JITTER, "standardise": standardise})
        batch = made.evaluation_batch(slice(5, 30))
        middle = PHOTOGRAPHS.images_NCHW[5:30, :, 1:7, 1:7].double().numpy()
        for found, image in zip(batch.images_BCHW.numpy(), middle, strict=True):
            expected = standard(image) if standardise else image / 255
            np.testing.assert_allclose(found, expected, atol=2e-6)
        assert torch.equal(batch.labels, PHOTOGRAPHS.labels_N[5:30])
        assert batch.targets_BLCHW is None
        assert batch.images_BCHW.dtype == torch.float32


def test_padded_images_are_cropped_beyond_their_border_in_training_only() -> None:
    pad = 2
    train, test = (cropped(PHOTOGRAPHS, split, crop=SIDE, pad=pad) for split in ("train", "test"))
    found_NCHW = train.prepare_epoch(3, 2)(torch.arange(COUNT)).images_BCHW
    places_N2 = torch.randint(2 * pad + 1, (COUNT, 2), generator=generator_of(3, "crop", 2))
    padded_NCHW = np.pad(PHOTOGRAPHS.images_NCHW.numpy(), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    for n, (top, left) in enumerate(places_N2.tolist()):
        expected = padded_NCHW[n, :, top : top + SIDE, left : left + SIDE] / 255
        np.testing.assert_allclose(found_NCHW[n].numpy(), expected, atol=1e-6)
    whole = test.evaluation_batch(slice(0, COUNT)).images_BCHW
    np.testing.assert_allclose(whole.numpy(), PHOTOGRAPHS.images_NCHW.numpy() / 255, atol=1e-6)
    with pytest.raises(ConfigError, match=r"=14: .* are 13x13 with dataset\.batches\.pad=2$"):
        cropped(PHOTOGRAPHS, crop=14, pad=pad)


@pytest.mark.parametrize("value", [0, 1, 255])
def test_an_image_of_one_colour_is_standardised_to_zero(value: int) -> None:
    image_1CHW = torch.full((1, 3, 4, 4), float(value))
    assert torch.equal(standardise_images(image_1CHW), torch.zeros(1, 3, 4, 4))


def test_13_crops_are_the_middle_and_three_steps_along_both_diagonals() -> None:
    side, crop = 14, 7
    rows_HW = torch.arange(side)[:, None].expand(side, side)
    places = torch.stack([rows_HW, rows_HW.T])[None].to(torch.uint8)  # pixels that know their place
    images = cropped(LabelledImages(places, torch.zeros(1, dtype=torch.int64)), "test", crop=crop)
    crops = list(images.iterate_crops(slice(0, 1)))
    corners = [(255 * batch.images_BCHW[0, :, 0, 0]).round().int().tolist() for batch in crops]
    assert corners[0] == [3, 3]
    assert sorted(corners) == sorted(
        [[3, 3]] + [[3 + a * k, 3 + b * k] for k in (1, 2, 3) for a in (-1, 1) for b in (-1, 1)]
    )
    assert torch.equal(crops[0].images_BCHW, images.evaluation_batch(slice(0, 1)).images_BCHW)


def test_13_crops_need_room() -> None:
    with pytest.raises(ConfigError, match=r"dataset\.batches\.crop leaves 3 pixels .* need 6"):
        next(cropped(PHOTOGRAPHS, "test").iterate_crops(slice(0, 1)))


@pytest.mark.parametrize(("size", "crop"), [((9, 9), 10), ((9, 8), 6)])
def test_images_that_have_no_such_square_are_refused(size: tuple[int, int], crop: int) -> None:
    with pytest.raises(ConfigError, match=rf"crop={crop}: images must .* are 9x{size[1]}"):
        cropped(make_noise(3, height=size[0], width=size[1]), crop=crop)
