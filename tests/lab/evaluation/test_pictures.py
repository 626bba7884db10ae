"""Pictures in rows and columns, and curves with bands, as they are on the page."""

import numpy as np
import pytest
from png_images import find_colour, read_pixels

from capsweep.lab.evaluation import pictures
from capsweep.lab.evaluation.pictures import BandedCurve, Grid, Panel
from capsweep.report.palette import COLOURS

SIDE = 40


def make_tiles(rows: int, columns: int) -> np.ndarray:
    """[R, K, H, W, 3]: each picture of one colour of its own."""
    tiles = np.zeros((rows, columns, 5, 5, 3))
    tiles[..., 0] = (np.arange(rows * columns).reshape(rows, columns, 1, 1) + 1) * 40 / 255
    return tiles


def draw_tiles(tiles: np.ndarray) -> np.ndarray:
    rows, columns = tiles.shape[:2]
    return read_pixels(pictures.draw_grid(Grid(tiles, [""] * rows, [""] * columns, "", "", SIDE)))


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
    assert pictures.scale_images(images_KCHW) is images_KCHW
    scaled = pictures.scale_images(9 * images_KCHW - 4)
    assert scaled.min(axis=(1, 2, 3)).tolist() == [0, 0, 0]
    assert scaled.max(axis=(1, 2, 3)).tolist() == [1, 1, 1]
    assert pictures.scale_images(np.full((1, 1, 2, 2), -3.0)).tolist() == [[[[0, 0], [0, 0]]]]


def draw_panels(*panels: Panel) -> np.ndarray:
    return read_pixels(pictures.draw_panels(panels, "iteration", "a title", "a caption"))


def test_every_curve_has_a_colour_of_its_own_in_every_panel() -> None:
    x = np.arange(1, 11)
    lines = [
        BandedCurve(f"layer {n}", x, (n + 1.0) / x, (n + 0.8) / x, (n + 1.2) / x, control=n + 1.5)
        for n in range(len(COLOURS))
    ]
    pixels = draw_panels(Panel("change", lines), Panel("change", lines, "log"))
    for half in np.array_split(pixels, 2, axis=1):
        for colour in COLOURS:
            assert find_colour(half, colour).sum() > 150


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_the_band_of_one_point_is_a_bar(scale: str) -> None:
    def draw_high(curve: BandedCurve) -> int:
        rows = np.nonzero(find_colour(draw_panels(Panel("change", [curve], scale)), COLOURS[0]))[0]
        return int(np.ptp(rows[rows > 150]))  # below the legend

    x, middle = np.array([100]), np.array([0.5])
    assert draw_high(BandedCurve("a", x, middle, middle - 0.4, middle + 0.4)) > 150
    assert draw_high(BandedCurve("a", x, middle, middle, middle)) < 50


def test_curves_of_one_step_have_one_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "finish_figure", lambda figure, *_: figure)
    step, loss = np.array([100]), np.array([0.5])
    panel = Panel("loss", [BandedCurve(name, step, loss, loss, loss) for name in "ab"])
    figure = pictures.draw_panels([panel], "step", "", "")
    assert figure.axes[0].get_xticks().tolist() == [100]


def test_a_band_that_reaches_zero_is_drawn_in_a_log_scale() -> None:
    x = np.arange(1, 5)
    curve = BandedCurve("classes", x, 1.0 / x, 0.0 * x, 2.0 / x)
    assert find_colour(draw_panels(Panel("change", [curve], "log")), COLOURS[0]).sum() > 150
