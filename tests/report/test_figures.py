"""The report's figures: there where there is something to show, and the same bytes each time."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from reported_cells import SWEEP, finish, rows, small_sweep

from capsweep.ledger.ledger import Ledger
from capsweep.report import cells, figures, table
from capsweep.report.charts import Drawn, NotDrawn


def draw(folder: Path, text: str = SWEEP) -> Sequence[Drawn | NotDrawn]:
    """The figures of the small sweep, with the ledger in the same folder."""
    sweep, points = small_sweep(folder, text)
    ledger = Ledger(folder)
    answer = table.build_table(sweep, points, ledger)
    return figures.draw_figures(
        answer, cells.cells_behind(answer, cells.read_cells(points, ledger))
    )


def stems(found: Sequence[Drawn | NotDrawn]) -> list[str]:
    """Of the figures that are there."""
    return [figure.stem for figure in found if isinstance(figure, Drawn)]


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A ledger in which all six cells are finished."""
    _, points = small_sweep(tmp_path)
    for place, point in enumerate(points):
        losses = [0.4 / (1 + place), 0.2 / (1 + place), 0.1 / (1 + place)]
        finish(tmp_path, point, 0.01 * (1 + place), rows(losses))
    return tmp_path


def test_nothing_is_drawn_of_nothing_and_each_absence_has_its_reason(tmp_path: Path) -> None:
    found = draw(tmp_path)
    assert stems(found) == []
    why = [figure.why for figure in found if isinstance(figure, NotDrawn)]
    assert len(why) == len(figures.KINDS)
    assert "margin of the loss: no finished cell tells a margin that grows." in why
    assert any("no row has all of its seeds" in reason for reason in why)


def test_a_figure_is_made_where_its_numbers_are(finished: Path) -> None:
    drawn = ["loss", "error", "throughput", "learning-rate", "cost-time", "cost-parameters"]
    assert stems(draw(finished)) == drawn


def test_a_margin_is_drawn_where_rows_tell_it(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    finish(tmp_path, points[0], 0.1, rows([0.4, 0.2], margin=0.5))
    assert "margin" in stems(draw(tmp_path))


def test_the_same_numbers_give_the_same_bytes(finished: Path) -> None:
    first, second = draw(finished), draw(finished)
    assert [f.files for f in first if isinstance(f, Drawn)] == [
        f.files for f in second if isinstance(f, Drawn)
    ]


def test_pictures_have_ink_of_several_colours_and_the_size_they_say(finished: Path) -> None:
    for figure in draw(finished):
        if not isinstance(figure, Drawn):
            continue
        image = Image.open(io.BytesIO(figure.files.png)).convert("RGB")
        scale = 150 / 96
        assert image.width == pytest.approx(scale * figure.files.width, abs=2)
        assert image.height == pytest.approx(scale * figure.files.height, abs=2)
        pixels = np.asarray(image).reshape(-1, 3)
        ink = float((pixels.min(axis=1) < 200).mean())
        assert 0.003 < ink < 0.5, figure.stem
        several = 3 if figure.section == "schedules" else 8  # a schedule may be one curve
        assert len(np.unique(pixels // 32, axis=0)) > several, figure.stem
        assert b"<svg" in figure.files.svg
        assert b"<dc:date>" not in figure.files.svg


def test_equal_schedules_are_named_as_one(finished: Path) -> None:
    (schedule,) = [f for f in draw(finished) if isinstance(f, Drawn) and f.section == "schedules"]
    assert "for all rows." in schedule.alt


def test_a_caption_says_which_seeds_ran_longer(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    finish(tmp_path, points[0], 0.1, rows([0.4, 0.2, 0.1]))
    finish(tmp_path, points[1], 0.1, rows([0.4, 0.2]))
    loss = next(f for f in draw(tmp_path) if isinstance(f, Drawn) and f.stem == "loss")
    assert "cnn · –: its seeds have 2 to 3 epochs, shown are those that all have." in loss.caption


def test_a_caption_says_which_cells_have_no_rows(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    finish(tmp_path, points[0], 0.1)
    folder = finish(tmp_path, points[1], 0.1)
    (folder / "metrics.jsonl").unlink()
    loss = next(f for f in draw(tmp_path) if isinstance(f, Drawn) and f.stem == "loss")
    assert "cnn · –: 1 of its finished cells have no such numbers." in loss.caption


def test_each_column_of_the_table_has_its_figures(tmp_path: Path) -> None:
    text = SWEEP.replace("columns: [dataset]", "columns: [batch_size]").replace(
        "dataset: mnist", "batch_size: 8"
    )
    text = text.replace("{routing.num_iters: [1, 3]}", "{batch_size: [8, 16]}")
    text = text.replace("rows: [arm, routing.num_iters]", "rows: [arm]")
    _, points = small_sweep(tmp_path, text)
    for point in points:
        finish(tmp_path, point, 0.1)
    found = stems(draw(tmp_path, text))
    assert len(set(found)) == len(found)
    assert {"loss-8-1", "loss-16-2"} <= set(found)


def test_no_letter_of_a_name_is_read_as_mathematics(tmp_path: Path) -> None:
    text = SWEEP.replace("capsnet:", "'_x$^{':")
    _, points = small_sweep(tmp_path, text)
    for point in points:
        finish(tmp_path, point, 0.1)
    assert "loss" in stems(draw(tmp_path, text))


def test_of_many_rows_the_baseline_and_the_best_are_drawn(tmp_path: Path) -> None:
    iterations = list(range(1, 20))
    text = SWEEP.replace("[1, 3]", str(iterations))
    sweep, points = small_sweep(tmp_path, text)
    for place, point in enumerate(points):
        finish(tmp_path, point, 0.9 if place < 2 else 0.5 - 0.01 * place)
    answer = table.build_table(sweep, points, Ledger(tmp_path))
    assert f"{figures.MOST} of the 20 rows" in figures.on_rows(answer)
    loss = next(f for f in draw(tmp_path, text) if isinstance(f, Drawn) and f.stem == "loss")
    assert "cnn · –" in loss.alt
    assert "capsnet · 19" in loss.alt
    assert "capsnet · 1;" not in loss.alt


def test_a_single_epoch_has_a_single_tick(tmp_path: Path) -> None:
    _, points = small_sweep(tmp_path)
    for point in points:
        finish(tmp_path, point, 0.1, rows([0.4]))
    loss = next(f for f in draw(tmp_path) if isinstance(f, Drawn) and f.stem == "loss")
    assert b'id="xtick_1"' in loss.files.svg
    assert b'id="xtick_2"' not in loss.files.svg
