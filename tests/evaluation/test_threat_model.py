"""What an attack may change: bounds and scales of plain and of standardised images."""

import pytest
import torch
from torch import nn

from capsweep.data.batches import Batch, EvaluatedSplit
from capsweep.data.image_batches import CroppedImages, ShiftedImages
from capsweep.data.images import LabelledImages
from capsweep.errors import UserError
from capsweep.evaluation.checkpoint import TrainedCell
from capsweep.evaluation.threat_model import OWN, SCALES, UNIT, ThreatModel, make_threat_model

ALL = slice(0, 6)


@pytest.fixture
def examples() -> LabelledImages:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, 2, 9, 9), generator=generator, dtype=torch.uint8)
    return LabelledImages(images, torch.arange(6))


def make_model(test: EvaluatedSplit, scale: str) -> ThreatModel:
    return make_threat_model(TrainedCell("cell", {}, nn.Identity(), test), ALL, scale)


def crop_images(examples: LabelledImages, standardise: bool) -> CroppedImages:
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


@pytest.mark.parametrize("scale", SCALES)
def test_plain_images_are_changed_within_0_and_1(examples: LabelledImages, scale: str) -> None:
    for test in (ShiftedImages(examples, "test", 1), crop_images(examples, standardise=False)):
        model = make_model(test, scale)
        assert torch.equal(model.images_BCHW, test.evaluation_batch(ALL).images_BCHW)
        far = model.clip_images(model.images_BCHW + 9, 5)
        assert float(far.min()) == float(far.max()) == 1
        assert model.bounds == UNIT


def test_standardised_images_are_changed_within_their_own_range(examples: LabelledImages) -> None:
    test = crop_images(examples, standardise=True)
    model = make_model(test, "input")
    assert torch.equal(model.images_BCHW, test.evaluation_batch(ALL).images_BCHW)
    assert model.bounds == OWN
    pixels = test.crop_pixels(ALL).double().flatten(1)
    white = (255 - pixels.mean(dim=1)) / pixels.std(dim=1, correction=0)
    brightest = model.clip_images(model.images_BCHW + 99, 99).flatten(1)
    torch.testing.assert_close(brightest.amax(dim=1).double(), white, atol=1e-5, rtol=0)
    assert torch.equal(brightest.amax(dim=1), brightest.amin(dim=1))
    some = model.select_images(torch.tensor([4, 1]))
    assert some.labels_B.tolist() == [4, 1]
    assert torch.equal(some.high, model.high[[4, 1]])


def test_pixels_are_standardised_after_they_are_changed(examples: LabelledImages) -> None:
    test = crop_images(examples, standardise=True)
    model = make_model(test, "pixels")
    given = test.evaluation_batch(ALL).images_BCHW
    torch.testing.assert_close(model.show(model.images_BCHW), given, atol=1e-5, rtol=1e-5)
    brighter = model.show(model.images_BCHW * 0.5 + 0.1)
    torch.testing.assert_close(brighter, given, atol=1e-5, rtol=1e-5)


def test_examples_of_several_classes_are_refused(examples: LabelledImages) -> None:
    class Several(ShiftedImages):
        def evaluation_batch(self, part: slice) -> Batch:
            return super().evaluation_batch(part)._replace(labels=torch.zeros((6, 2)))

    with pytest.raises(UserError, match="cell: attacks need one class per image"):
        make_model(Several(examples, "test", 1), "input")
