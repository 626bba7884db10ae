"""Images that move in training: the canvas they move on, and validation that moves too."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from capsweep.data.batches import Batch, to_unit
from capsweep.data.image_batches import ShiftedImages
from capsweep.data.images import LabelledImages
from capsweep.errors import ConfigError

Noise = Callable[..., LabelledImages]
SPLITS = ["train", "validation", "test"]


def evaluated(images: ShiftedImages) -> Batch:
    return images.evaluation_batch(slice(0, len(images)))


def place_of(image_CHW: Tensor, small_CHW: Tensor) -> tuple[int, int]:
    """Where on its canvas the whole small image lies, with nothing around it."""
    ink_HW = image_CHW.any(dim=0)
    top, left = int(ink_HW.any(dim=1).nonzero().min()), int(ink_HW.any(dim=0).nonzero().min())
    height, width = small_CHW.shape[1:]
    alone_CHW = torch.zeros_like(image_CHW)
    alone_CHW[:, top : top + height, left : left + width] = small_CHW
    assert torch.equal(alone_CHW, image_CHW)
    return top, left


@pytest.mark.parametrize("split", ["validation", "test"])
def test_evaluated_images_lie_in_the_middle_of_the_canvas(noise: Noise, split: str) -> None:
    examples = noise(9, channels=2, height=6, width=5)
    batch = evaluated(ShiftedImages(examples, split, shift=2, canvas=11))
    expected_NCHW = torch.zeros(9, 2, 11, 11)
    expected_NCHW[:, :, 2:8, 3:8] = to_unit(examples.images_NCHW)
    assert torch.equal(batch.images_BCHW, expected_NCHW)
    assert torch.equal(batch.labels, examples.labels_N)
    assert batch.targets_BLCHW is None


def test_the_whole_image_moves_over_all_of_the_canvas_in_training(noise: Noise) -> None:
    examples = noise(12, height=6, width=6)
    train, places = ShiftedImages(examples, "train", shift=3, canvas=12), set()
    for epoch in range(40):
        batch = train.prepare_epoch(0, epoch)(torch.arange(12))
        for image_CHW, small_CHW in zip(batch.images_BCHW, examples.images_NCHW, strict=True):
            places.add(place_of(image_CHW, to_unit(small_CHW)))
    assert places == {(top, left) for top in range(7) for left in range(7)}


def test_moved_validation_gives_every_image_a_place_of_its_own_that_never_changes(
    noise: Noise,
) -> None:
    examples = noise(60, height=4, width=4)

    def moved() -> Batch:
        return evaluated(ShiftedImages(examples, "validation", 3, 10, moved_validation=True))

    batch = moved()
    places = [
        place_of(image_CHW, to_unit(small_CHW))
        for image_CHW, small_CHW in zip(batch.images_BCHW, examples.images_NCHW, strict=True)
    ]
    assert len(set(places)) > 30  # of 49
    assert torch.equal(moved().images_BCHW, batch.images_BCHW)
    assert torch.equal(batch.labels, examples.labels_N)


@pytest.mark.parametrize("split", SPLITS)
def test_a_canvas_smaller_than_the_images_is_refused(noise: Noise, split: str) -> None:
    with pytest.raises(ConfigError, match=r"canvas of 5 pixels has no room for images of 6x5"):
        ShiftedImages(noise(3), split, shift=1, canvas=5)
