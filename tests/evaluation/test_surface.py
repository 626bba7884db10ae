"""What an attack may change: bounds and scales of plain and of standardised images."""

import pytest
import torch

from capsweep.data.batches import Batch
from capsweep.data.image_batches import CroppedImages, ShiftedImages
from capsweep.data.images import LabelledImages
from capsweep.errors import UserError
from capsweep.evaluation import surface

ALL = slice(0, 6)


@pytest.fixture
def examples() -> LabelledImages:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, 2, 9, 9), generator=generator, dtype=torch.uint8)
    return LabelledImages(images, torch.arange(6))


def cropped(examples: LabelledImages, standardise: bool) -> CroppedImages:
    return CroppedImages(
        examples,
        "test",
        crop=6,
        flip=False,
        brightness=0.0,
        contrast=[1.0, 1.0],
        mean_over="crop",
        standardise=standardise,
    )


@pytest.mark.parametrize("scale", surface.SCALES)
def test_plain_images_are_changed_within_0_and_1(examples: LabelledImages, scale: str) -> None:
    for test in (ShiftedImages(examples, "test", 1), cropped(examples, standardise=False)):
        shown = surface.of(test, ALL, scale)
        assert torch.equal(shown.images_BCHW, test.evaluation_batch(ALL).images_BCHW)
        far = shown.bounded(shown.images_BCHW + 9, 5)
        assert float(far.min()) == float(far.max()) == 1
        assert shown.bounds == surface.UNIT


def test_standardised_images_are_changed_within_their_own_range(examples: LabelledImages) -> None:
    test = cropped(examples, standardise=True)
    shown = surface.of(test, ALL, "input")
    assert torch.equal(shown.images_BCHW, test.evaluation_batch(ALL).images_BCHW)
    assert shown.bounds == surface.OWN
    pixels = test.crop_pixels(ALL).double().flatten(1)
    white = (255 - pixels.mean(dim=1)) / pixels.std(dim=1, correction=0)
    found = shown.bounded(shown.images_BCHW + 99, 99).flatten(1)
    torch.testing.assert_close(found.amax(dim=1).double(), white, atol=1e-5, rtol=0)
    assert torch.equal(found.amax(dim=1), found.amin(dim=1))


def test_pixels_are_standardised_after_they_are_changed(examples: LabelledImages) -> None:
    test = cropped(examples, standardise=True)
    shown = surface.of(test, ALL, "pixels")
    given = test.evaluation_batch(ALL).images_BCHW
    torch.testing.assert_close(shown.shown(shown.images_BCHW), given, atol=1e-5, rtol=1e-5)
    brighter = shown.shown(shown.images_BCHW * 0.5 + 0.1)
    torch.testing.assert_close(brighter, given, atol=1e-5, rtol=1e-5)


def test_some_of_a_surface_keep_their_bounds(examples: LabelledImages) -> None:
    shown = surface.of(cropped(examples, standardise=True), ALL, "input")
    some = shown.select(torch.tensor([4, 1]))
    assert some.labels_B.tolist() == [4, 1]
    assert shown.high is not None
    assert torch.equal(some.high, shown.high[[4, 1]])


def test_examples_of_several_classes_are_refused(examples: LabelledImages) -> None:
    class Several(ShiftedImages):
        def evaluation_batch(self, part: slice) -> Batch:
            return super().evaluation_batch(part)._replace(labels=torch.zeros((6, 2)))

    with pytest.raises(UserError, match="one class per image"):
        surface.of(Several(examples, "test", 1), ALL, "input")
