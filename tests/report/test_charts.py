"""Pictures in rows and columns."""

import numpy as np
import pytest
from png_images import find_colour, read_pixels

from capsweep.report import charts

SIDE = 40


def make_tiles(rows: int, columns: int) -> np.ndarray:
    """[R, K, H, W, 3]: each picture of one colour of its own."""
    tiles = np.zeros((rows, columns, 5, 5, 3))
    tiles[..., 0] = (np.arange(rows * columns).reshape(rows, columns, 1, 1) + 1) * 40 / 255
    return tiles


def draw_tiles(tiles: np.ndarray) -> np.ndarray:
    rows, columns = tiles.shape[:2]
    return read_pixels(charts.draw_grid(tiles, [""] * rows, [""] * columns, "", "", SIDE))


def find_tile(pixels: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.nonzero(find_colour(pixels, (40 * (number + 1), 0, 0)))
    return rows, columns


def test_pictures_stand_in_rows_and_columns_all_of_one_size() -> None:
    pixels = draw_tiles(make_tiles(2, 3))
    corners, sizes = {}, set()
    for number in range(6):
        y, x = find_tile(pixels, number)
        assert len(y) == pytest.approx(np.ptp(y) * np.ptp(x), rel=0.1)
        corners[number] = (y.min(), x.min())
        sizes.add(np.ptp(y) // 4)
    assert len(sizes) == 1
    assert corners[0][0] == corners[2][0] < corners[3][0]
    assert corners[0][1] == corners[3][1] < corners[4][1] < corners[5][1]


def test_standardised_images_are_scaled_to_their_own_range() -> None:
    images_KCHW = np.random.default_rng(0).random((3, 1, 4, 4))
    assert charts.scale_images(images_KCHW) is images_KCHW
    scaled = charts.scale_images(9 * images_KCHW - 4)
    assert scaled.min(axis=(1, 2, 3)).tolist() == [0, 0, 0]
    assert scaled.max(axis=(1, 2, 3)).tolist() == [1, 1, 1]
    assert charts.scale_images(np.full((1, 1, 2, 2), -3.0)).tolist() == [[[[0, 0], [0, 0]]]]
