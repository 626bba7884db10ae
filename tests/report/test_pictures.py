"""Rows and kinds of pictures share the room of a page; what has none is told of."""

from pathlib import Path

import pytest
from reported_cells import evaluate, finish, small_sweep

from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.report import cells, pictures, table
from capsweep.report.pictures import PictureKind

CNN, CAPSNET = "cnn · –", "capsnet · 1"


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A ledger in which two rows of two seeds are finished, each with a picture."""
    for point in small_sweep(tmp_path)[1][:4]:
        evaluate(finish(tmp_path, point, 0.1), "reconstructions", "caption")
    return tmp_path


def add(folder: Path, place: int, stem: str, width: int = 64) -> int:
    """Give the cell of a point a picture; how many bytes it takes."""
    cell = folder / folder_of(small_sweep(folder)[1][place].cell.signature)
    evaluate(cell, stem, "caption", width)
    return (cell / "evals" / f"{stem}.png").stat().st_size


def read(folder: Path) -> dict[str, PictureKind]:
    """The pictures of the page of the small sweep."""
    sweep, points = small_sweep(folder)
    ledger = Ledger(folder)
    fields = cells.cells_behind(
        table.build_table(sweep, points, ledger), cells.read_cells(points, ledger)
    )
    return {kind.name: kind for kind in pictures.read(fields, ledger)}


def rows_of(kind: PictureKind) -> list[str]:
    """The row of each picture that is shown."""
    return [one.field.name for one in kind.shown]


def left_out(kind: PictureKind) -> list[tuple[str, int, int]]:
    """Row, seed and number of the others."""
    return [(one.field.name, one.seed, one.count) for one in kind.left_out]


def test_without_room_every_picture_is_told_of_with_its_cell(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "BYTES", 0)
    found = read(finished)["reconstructions"]
    assert found.shown == ()
    assert left_out(found) == [(row, seed, 1) for row in (CNN, CAPSNET) for seed in (0, 1)]
    assert found.more == 4


def test_ten_classes_of_a_row_are_shown_and_more_are_told_of(finished: Path) -> None:
    for label in range(12):
        add(finished, 0, f"perturbations-class{label}")
    found = read(finished)["perturbations"]
    assert rows_of(found) == [CNN] * 10
    assert left_out(found) == [(CNN, 0, 2)]


def test_every_row_and_kind_has_a_picture_before_any_has_two(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [add(finished, i, f"perturbations-class{k}") for i in (0, 2) for k in range(5)]
    monkeypatch.setattr(pictures, "BYTES", 4 * sizes[0])
    found = read(finished)
    assert rows_of(found["reconstructions"]) == rows_of(found["perturbations"]) == [CNN, CAPSNET]
    assert left_out(found["perturbations"]) == [(CNN, 0, 4), (CAPSNET, 0, 4)]
    monkeypatch.setattr(pictures, "BYTES", 2 * sizes[0])
    found = read(finished)
    assert rows_of(found["reconstructions"]) == [CNN]
    assert rows_of(found["perturbations"]) == [CAPSNET]


def test_a_picture_that_is_too_large_hides_no_other(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = add(finished, 0, "perturbations-class0", width=6000)
    add(finished, 0, "perturbations-class1")
    monkeypatch.setattr(pictures, "BYTES", large - 1)
    found = read(finished)
    assert [one.name for one in found["perturbations"].shown] == ["perturbations-class1.png"]
    assert left_out(found["perturbations"]) == [(CNN, 0, 1)]
    assert rows_of(found["reconstructions"]) == [CNN, CAPSNET]


def test_a_full_page_asks_for_no_more_pictures(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(finished, 0, "couplings", width=6000)
    monkeypatch.setattr(pictures, "MISSES", 1)
    monkeypatch.setattr(pictures, "BYTES", 0)
    asked: list[str] = []
    whole = Ledger.read

    def recorded(ledger: Ledger, signature: str, name: str) -> bytes | None:
        asked.append(name)
        return whole(ledger, signature, name)

    monkeypatch.setattr(Ledger, "read", recorded)
    assert sum(kind.more for kind in read(finished).values()) == 5
    assert len([name for name in asked if name.endswith(".png")]) == 1
