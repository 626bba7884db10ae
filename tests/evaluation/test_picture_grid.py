"""Pictures in rows and columns: every pixel of theirs is in the PNG, and as large as the others."""

import io

import numpy as np
import pytest
from PIL import Image

from capsweep.evaluation import picture_grid
from capsweep.evaluation.picture_grid import Grid

SIDE, PIXELS = 20, 5
ZOOM = SIDE // PIXELS


def colours(rows: int, columns: int) -> np.ndarray:
    """[R, K, H, W, 3]: each picture of one colour of its own, one pixel of it blue."""
    tiles = np.zeros((rows, columns, PIXELS, PIXELS, 3))
    tiles[..., 0] = (np.arange(rows * columns).reshape(rows, columns, 1, 1) + 1) * 20 / 255
    tiles[:, :, 1, 3] = 0, 0, 1
    return tiles


def drawn(grid: Grid) -> np.ndarray:
    """The PNG, [Y, X, 3]."""
    file = io.BytesIO()
    picture_grid.draw(grid, file)
    file.seek(0)
    return np.asarray(Image.open(file).convert("RGB"))


def grid(tiles: np.ndarray, **options: object) -> Grid:
    rows, columns = tiles.shape[:2]
    return Grid(tiles, [""] * rows, [""] * columns, "", "", **{"side": SIDE, **options})


def where(picture: np.ndarray, colour: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    y, x = np.nonzero((picture == colour).all(axis=2))
    return y, x


def test_every_pixel_of_every_picture_is_a_square_of_whole_pixels() -> None:
    picture = drawn(grid(colours(2, 3)))
    corners = {}
    for number in range(6):
        y, x = where(picture, ((number + 1) * 20, 0, 0))
        assert len(y) == (PIXELS * PIXELS - 1) * ZOOM * ZOOM
        assert (np.ptp(y) + 1, np.ptp(x) + 1) == (SIDE, SIDE)
        blue = picture[y.min() + ZOOM : y.min() + 2 * ZOOM, x.min() + 3 * ZOOM : x.min() + SIDE]
        assert (blue[:, :ZOOM] == (0, 0, 255)).all()
        corners[number] = (y.min(), x.min())
    assert corners[0][0] == corners[2][0] < corners[3][0]
    assert corners[0][1] == corners[3][1] < corners[4][1] < corners[5][1]


def test_groups_of_columns_stand_apart_and_what_is_not_there_is_white() -> None:
    tiles = colours(1, 3)
    tiles[0, 1] = np.nan
    picture = drawn(grid(tiles, groups=[0, 2]))
    first, last = (where(picture, (colour, 0, 0))[1] for colour in (20, 60))
    assert last.min() - first.min() == 2 * (SIDE + picture_grid.GAP) + picture_grid.WIDE
    middle = slice(first.max() + 1, last.min())
    assert (picture[where(picture, (20, 0, 0))[0].min(), middle] == 255).all()


def test_texts_are_drawn_beside_above_and_below() -> None:
    tiles = colours(2, 2)
    bare = drawn(grid(tiles))
    texts = Grid(tiles, ["one", "two"], ["a\nb", "c"], "title", 30 * "caption ", side=SIDE)
    told = drawn(texts)
    y, x = where(told, (20, 0, 0))
    assert (told[: y.min() - 40, :] < 128).any()  # the title
    assert (told[y.min() - 40 : y.min(), :] < 128).any()
    assert (told[y.min() :, : x.min()] < 128).any()
    assert (told[where(told, (60, 0, 0))[0].max() + 1 :] < 128).any()
    for number in range(4):
        colour = ((number + 1) * 20, 0, 0)
        assert len(where(told, colour)[0]) == len(where(bare, colour)[0])


@pytest.mark.parametrize(("channels", "shown"), [(1, [0, 0, 0]), (2, [0, 0, 0]), (3, [0, 1, 2])])
def test_three_channels_are_colours_and_of_others_the_first_is_shown(
    channels: int, shown: list[int]
) -> None:
    images_KCHW = np.random.default_rng(0).random((2, channels, 4, 5))
    seen = picture_grid.rgb(images_KCHW)
    assert seen.shape == (2, 4, 5, 3)
    for colour, channel in enumerate(shown):
        np.testing.assert_array_equal(seen[..., colour], images_KCHW[:, channel])


def test_standardised_images_are_scaled_to_their_own_range_and_that_is_told() -> None:
    images_KCHW = np.random.default_rng(0).random((3, 1, 4, 4))
    same, told = picture_grid.own_range(images_KCHW)
    assert same is images_KCHW
    assert told == ""
    scaled, told = picture_grid.own_range(np.concatenate([9 * images_KCHW - 4] * 2, axis=1))
    assert scaled.min(axis=(1, 2, 3)).tolist() == [0, 0, 0]
    assert scaled.max(axis=(1, 2, 3)).tolist() == [1, 1, 1]
    assert "own range" in told
    assert "stereo" in told
    flat, _ = picture_grid.own_range(np.full((1, 1, 2, 2), -3.0))
    assert flat.tolist() == [[[[0, 0], [0, 0]]]]
