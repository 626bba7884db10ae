"""What dataset=smallnorb shows a network: the order of the EM paper's authors, step by step."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from capsweep.config import compose
from capsweep.data.batches import Split
from capsweep.data.images import LabelledImages
from capsweep.data.randomness import generator_of
from capsweep.training import build

Noise = Callable[..., LabelledImages]
DATASETS = ("smallnorb", "smallnorb_azimuth", "smallnorb_elevation")
COUNT, SIDE, CROP = 12, 48, 32
SEED, EPOCH = 5, 3

every_dataset = pytest.mark.parametrize("dataset", DATASETS)


@pytest.fixture(scope="module")
def pairs() -> LabelledImages:
    """Stereo pairs after halving, dark and bright and of little and of much contrast."""
    generator = np.random.default_rng(0)
    level_N111 = generator.integers(0, 120, (COUNT, 1, 1, 1))
    span_N111 = generator.integers(2, 130, (COUNT, 1, 1, 1))
    noise_NCHW = generator.random((COUNT, 2, SIDE, SIDE))
    images_NCHW = (level_N111 + span_N111 * noise_NCHW).astype(np.uint8)
    return LabelledImages(torch.from_numpy(images_NCHW), torch.arange(COUNT) % 5)


def standardised(image_CHW: np.ndarray) -> np.ndarray:
    """Of both views jointly."""
    deviation = max(image_CHW.std(), 1 / math.sqrt(image_CHW.size))
    return (image_CHW - image_CHW.mean()) / deviation


def trained_on(
    pair_CHW: np.ndarray, added: float, factor: float, top: int, left: int
) -> np.ndarray:
    """One training image, in the authors' order: nothing is cropped before it is jittered."""
    image_CHW = pair_CHW.astype(float)
    for channel in range(2):  # brightness of 0..255, not clipped
        image_CHW[channel] += added
    for channel in range(2):  # contrast keeps the mean of each view as it is now, all 48x48 pixels
        mean = image_CHW[channel].mean()
        image_CHW[channel] = (image_CHW[channel] - mean) * factor + mean
    crop_CHW = image_CHW[:, top : top + CROP, left : left + CROP]
    return standardised(crop_CHW)


@every_dataset
def test_training_images_are_brightened_contrasted_cropped_and_then_standardised(
    dataset: str, pairs: LabelledImages
) -> None:
    presenter = build.build_presenter(compose.cell([f"dataset={dataset}"]).config)
    batch = presenter(pairs, "train").epoch(SEED, EPOCH)(torch.arange(COUNT))
    generator = generator_of(SEED, "crop", EPOCH)
    places_N2 = torch.randint(SIDE - CROP + 1, (COUNT, 2), generator=generator)
    uniform_3N = torch.rand((3, COUNT), generator=generator).double()
    for n in range(COUNT):
        expected_CHW = trained_on(
            pairs.images_NCHW[n].numpy(),
            63 * (2 * float(uniform_3N[1, n]) - 1),
            0.2 + 1.6 * float(uniform_3N[2, n]),
            *places_N2[n].tolist(),
        )
        np.testing.assert_allclose(batch.images_BCHW[n].numpy(), expected_CHW, atol=1e-4)
    assert torch.equal(batch.labels, pairs.labels_N)


@every_dataset
def test_brightness_is_the_authors_though_standardising_takes_it_away(
    dataset: str, pairs: LabelledImages
) -> None:
    config = compose.cell([f"dataset={dataset}"]).config
    assert config["dataset"]["batches"]["brightness"] == 63.0
    without = compose.cell([f"dataset={dataset}", "dataset.batches.brightness=0.0"]).config
    found, same = (
        build.build_presenter(each)(pairs, "train")
        .epoch(SEED, EPOCH)(torch.arange(COUNT))
        .images_BCHW
        for each in (config, without)
    )
    torch.testing.assert_close(found, same, atol=1e-4, rtol=0)


@every_dataset
@pytest.mark.parametrize("split", ["validation", "test"])
def test_other_images_are_cropped_in_the_middle_and_then_standardised(
    dataset: str, split: Split, pairs: LabelledImages
) -> None:
    presenter = build.build_presenter(compose.cell([f"dataset={dataset}"]).config)
    batch = presenter(pairs, split).evaluated(slice(0, COUNT))
    for n in range(COUNT):
        middle_CHW = pairs.images_NCHW[n, :, 8:40, 8:40].double().numpy()
        found_CHW = batch.images_BCHW[n].numpy()
        np.testing.assert_allclose(found_CHW, standardised(middle_CHW), atol=1e-5)
        assert abs(found_CHW[0].mean()) > 1e-5  # both views together have mean 0, not each
