"""Shifts with zero fill, offsets drawn evenly, bytes to numbers."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples

from capsweep.data.batches import shift_windows, to_unit, window_places, windows_at
from capsweep.data.image_batches import centre_images
from capsweep.data.images import LabelledImages


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
    on_it = centre_images(LabelledImages(images_NCHW, torch.zeros(shape[0])), canvas)
    found = shift_windows(images_NCHW, shift, canvas)
    assert torch.equal(found, shift_windows(on_it, shift))


@given(data=st.data(), shift=st.integers(0, 3), room=st.integers(0, 4), channels=st.integers(1, 3))
@at_most_examples(60)
def test_windows_are_read_where_indices_would_find_them(
    data: st.DataObject, shift: int, room: int, channels: int
) -> None:
    images_NCHW = torch.arange(7 * channels * 20).view(7, channels, 5, 4).to(torch.uint8)
    moved_to = shift_windows(images_NCHW, shift, 5 + room)
    cropped = images_NCHW.unfold(2, 3, 1).unfold(3, 2, 1)
    for windows in (moved_to, cropped):
        rows, columns = windows.shape[2:4]
        one = st.tuples(st.integers(0, 6), st.integers(0, rows - 1), st.integers(0, columns - 1))
        chosen_B3 = torch.tensor(data.draw(st.lists(one, min_size=1, max_size=9)))
        index_B, offsets_B2 = chosen_B3[:, 0], chosen_B3[:, 1:]
        found = windows_at(windows, window_places(windows, index_B, offsets_B2))
        assert torch.equal(found, windows[index_B, :, offsets_B2[:, 0], offsets_B2[:, 1]])


def test_to_unit_maps_bytes_to_the_unit_interval() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    unit = to_unit(levels)
    assert unit.dtype == torch.float32
    assert (unit[0], unit[255]) == (0, 1)
    assert torch.equal(unit, torch.tensor([level / 255 for level in range(256)]))
    assert torch.equal(levels, torch.arange(256, dtype=torch.uint8))
