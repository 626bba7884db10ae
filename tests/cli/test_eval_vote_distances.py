"""`capsweep eval vote-distances`: the figure of one cell."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from finished_cells import TINY_MATRIX
from matplotlib.image import imread

from capsweep import cli
from capsweep.config import compose, places
from capsweep.config.cell import Cell
from capsweep.training.run import run


def draw(signature: str, storage: Path, *options: str) -> int:
    choices = [signature, "--storage", str(storage), "--device", "cpu", *options]
    return cli.main(["eval", "vote-distances", *choices])


def finished(cell: Cell) -> str:
    run(cell, places.resolve(cell.config["places"]))
    return cell.signature


def test_a_figure_and_its_numbers_are_written_for_each_image(
    storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signature = finished(compose.cell([*TINY_MATRIX, f"places.storage={storage}"]))
    assert draw(signature[:6], storage, "--examples", "5,0") == 0
    said = capsys.readouterr().out
    folder = storage / "ledger" / signature[:2] / signature / "evals"
    for image in (0, 5):
        path = folder / f"vote-distances-R-squared-12-0.05-example{image}.png"
        assert f"{path}\n" in said
        picture = imread(path)[..., :3]
        assert (picture.min(axis=2) < 0.99).sum() > 3000
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as found:
            assert found["weight"].shape == (3, 10, 12)
            # Each child divides itself among the classes, in every iteration.
            whole = (found["weight"].sum(axis=2) + found["beyond"]).sum(axis=1)
            np.testing.assert_allclose(whole, whole[0], rtol=1e-4)
    assert "12 bins on [0, 0.05]" in said
    assert draw(signature, storage, "--range", "full", "--weights", "Ra", "--images", "1") == 0
    assert (folder / "vote-distances-Ra-squared-12-full-example0.png").exists()
    assert draw(signature, storage, "--examples", "360") == 2
    assert f"{signature} has the test images 0..359, got 360" in capsys.readouterr().err


def test_dynamic_routing_has_no_distances(
    storage: Path, small_cell: Callable[..., Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    signature = finished(small_cell("epochs=1", "limit_batches=1"))
    assert draw(signature, storage) == 2
    said = capsys.readouterr().err
    assert f"{signature}: its routing gives no distances of votes" in said
    assert "routing=em" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--range", "wide"], "--range must be full or a number, got wide"),
        (["--examples", "a"], "--examples must be places such as 0,5,7, got a"),
        (["--images", "0"], "--images must be >= 1"),
        (["--weights", "a"], "--weights must be one of R, Ra, got a"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(
    storage: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert draw("0123", storage, *options) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_an_unknown_cell_is_named(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert draw("0123", storage) == 2
    assert "0123: no cell of" in capsys.readouterr().err
