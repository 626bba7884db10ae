"""Images that move on a canvas, as if they had been put on it before, in training and validation;
windows are read where indices find them, and bytes become numbers.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from small_data import make_noise
from torch import Tensor

from capsweep.data.batches import Batch, to_unit
from capsweep.data.image_batches import ShiftedImages
from capsweep.data.windows import Windows
from capsweep.errors import ConfigError


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
def test_evaluated_images_lie_in_the_middle_of_the_canvas(split: str) -> None:
    examples = make_noise(9, channels=2, height=6, width=5)
    batch = evaluated(ShiftedImages(examples, split, shift=2, canvas=11))
    expected_NCHW = torch.zeros(9, 2, 11, 11)
    expected_NCHW[:, :, 2:8, 3:8] = to_unit(examples.images_NCHW)
    assert torch.equal(batch.images_BCHW, expected_NCHW)
    assert torch.equal(batch.labels, examples.labels_N)
    assert batch.targets_BLCHW is None


def test_the_whole_image_moves_over_all_of_the_canvas_in_training() -> None:
    examples = make_noise(12, height=6, width=6)
    train, places = ShiftedImages(examples, "train", shift=3, canvas=12), set()
    for epoch in range(40):
        batch = train.prepare_epoch(0, epoch)(torch.arange(12))
        for image_CHW, small_CHW in zip(batch.images_BCHW, examples.images_NCHW, strict=True):
            places.add(place_of(image_CHW, to_unit(small_CHW)))
    assert places == {(top, left) for top in range(7) for left in range(7)}


def test_moved_validation_gives_every_image_a_place_of_its_own_that_never_changes() -> None:
    examples = make_noise(60, height=4, width=4)

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


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_canvas_smaller_than_the_images_is_refused(split: str) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.batches\.canvas=5 must be larger: .* 6x5"):
        ShiftedImages(make_noise(3), split, shift=1, canvas=5)


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 5), st.integers(1, 4)),
    shift=st.integers(0, 3),
    room=st.integers(0, 4),
)
@at_most_examples(60)
def test_images_move_on_a_canvas_as_if_they_had_been_put_on_it_before(
    shape: tuple[int, int, int, int], shift: int, room: int
) -> None:
    images_NCHW = torch.arange(1, 1 + math.prod(shape)).view(shape).to(torch.uint8)
    canvas = max(shape[2:]) + room
    on_it = torch.zeros(*shape[:2], canvas, canvas, dtype=torch.uint8)
    above, left = ((canvas - size) // 2 for size in shape[2:])
    on_it[:, :, above : above + shape[2], left : left + shape[3]] = images_NCHW
    found = Windows.at_shifts(images_NCHW, shift, canvas)
    assert torch.equal(found.view, Windows.at_shifts(on_it, shift).view)


@given(data=st.data(), shift=st.integers(0, 3), room=st.integers(0, 4), channels=st.integers(1, 3))
@at_most_examples(60)
def test_windows_are_read_where_indices_would_find_them(
    data: st.DataObject, shift: int, room: int, channels: int
) -> None:
    images_NCHW = torch.arange(7 * channels * 20).view(7, channels, 5, 4).to(torch.uint8)
    moved_to = Windows.at_shifts(images_NCHW, shift, 5 + room)
    cropped = Windows(images_NCHW.unfold(2, 3, 1).unfold(3, 2, 1))
    for windows in (moved_to, cropped):
        rows, columns = windows.view.shape[2:4]
        one = st.tuples(st.integers(0, 6), st.integers(0, rows - 1), st.integers(0, columns - 1))
        chosen_B3 = torch.tensor(data.draw(st.lists(one, min_size=1, max_size=9)))
        index_B, offsets_B2 = chosen_B3[:, 0], chosen_B3[:, 1:]
        found = windows.copy(windows.locate(index_B, offsets_B2))
        assert torch.equal(found, windows.view[index_B, :, offsets_B2[:, 0], offsets_B2[:, 1]])


def test_to_unit_maps_bytes_to_the_unit_interval() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    unit = to_unit(levels)
    assert unit.dtype == torch.float32
    assert (unit[0], unit[255]) == (0, 1)
    assert torch.equal(unit, torch.tensor([level / 255 for level in range(256)]))
    assert torch.equal(levels, torch.arange(256, dtype=torch.uint8))
