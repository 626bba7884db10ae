"""`capsweep eval NAME CELL`: what the doors of all figures of a cell share, and the decoder's."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from finished_cells import finish
from PIL import Image

from capsweep import cli
from capsweep.config.cell import Cell
from capsweep.errors import NotApplicableError
from capsweep.evaluation_doors import figures
from capsweep.ledger.ledger import EVALUATION_KINDS, kind_of_evaluation

TWO = ["dataset=multimnist", "dataset.source=digits", "dataset.batches.test_examples=200"]
SHORT = ["epochs=1", "limit_batches=1"]
DECODED = ("reconstructions", "perturbations", "segmentation")


def draw(name: str, signature: str, storage: Path, *options: str) -> int:
    choices = [signature, "--storage", str(storage), "--device", "cpu", *options]
    return cli.main(["eval", name, *choices])


def evaluations(storage: Path, signature: str) -> Path:
    return storage / "ledger" / signature[:2] / signature / "evals"


def is_blank(path: Path) -> bool:
    picture = np.asarray(Image.open(path).convert("L"))
    return len(np.unique(picture)) < 10 or (picture < 250).mean() < 0.05


def test_figures_of_one_digit_are_pictures_with_their_numbers(
    storage: Path, small_cell: Callable[..., Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    cell = small_cell("epochs=1")
    finish(cell)
    capsys.readouterr()
    folder = evaluations(storage, cell.signature)
    assert draw("reconstructions", cell.signature[:6], storage) == 0
    path = folder / "reconstructions-correct8-failures4.png"
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [str(path.with_suffix(".npz")), str(path)]
    assert not is_blank(path)
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as found:
        assert str(found["caption"]) == said[2]
        assert found["images"].shape == found["reconstructions"].shape == (16, 1, 28, 28)
        right = found["labels"] == found["predictions"]
        assert right.sum() == 8
        assert (found["drawn_from"][right] == found["labels"][right]).all()
        assert len(set(found["places"].tolist())) == 12
    assert draw("perturbations", cell.signature, storage, "--classes", "8,3") == 0
    assert sorted(path.name for path in folder.glob("perturbations*.png")) == [
        "perturbations-class3.png",
        "perturbations-class8.png",
    ]
    assert draw("perturbations", cell.signature, storage, "--examples", "5") == 0
    (path,) = folder.glob("perturbations-class*-example5.png")
    assert not is_blank(path)
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as found:
        assert found["reconstructions"].shape == (16, 11, 1, 28, 28)
        assert f"class{found['label']}-" in path.name
    capsys.readouterr()
    assert draw("segmentation", cell.signature, storage) == 2
    said = capsys.readouterr().err
    assert f"{cell.signature}: its images do not show two classes" in said
    assert said.count("\n") == 1


def test_figures_of_two_digits_are_pictures_with_their_numbers(
    storage: Path, small_cell: Callable[..., Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    cell = small_cell(*SHORT, *TWO)
    loader = finish(cell)
    capsys.readouterr()
    options = ["--correct", "2", "--starred", "1", "--failures", "2"]
    assert draw("segmentation", cell.signature, storage, *options) == 0
    path = evaluations(storage, cell.signature) / "segmentation-correct2-starred1-failures2.png"
    assert not is_blank(path)
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as found:
        assert found["reconstructions"].shape == (7, 2, 1, 36, 36)
        assert found["digits"].shape == (7, 2, 1, 36, 36)
        assert found["starred"].tolist() == [False, False, True, False, False, False, False]
        assert "neither label nor prediction" in str(found["caption"])
    with pytest.raises(NotApplicableError, match=f"{cell.signature}: .* ask for segmentation"):
        figures.make("reconstructions", loader, cell.signature)
    paths = figures.make("perturbations", loader, cell.signature)
    assert len(paths) == 20
    assert all(Path(path).exists() for path in paths)


def test_a_program_is_told_what_was_written_and_what_a_cell_has_not(
    storage: Path, small_cell: Callable[..., Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    cell = small_cell(*SHORT, "loss.reconstruction.weight=0")
    loader = finish(cell)
    for name in DECODED:
        with pytest.raises(NotApplicableError, match=f"^{cell.signature}: its network has no dec"):
            figures.make(name, loader, cell.signature)
    capsys.readouterr()
    for name in DECODED:
        assert draw(name, cell.signature, storage) == 2
        said = capsys.readouterr().err
        assert "loss.reconstruction.weight=0.0005" in said
        assert said.count("\n") == 1
    assert not list(evaluations(storage, cell.signature).glob("[!w]*"))  # worst-examples alone


@pytest.mark.parametrize("name", DECODED)
def test_a_cell_that_is_not_there_or_has_no_weights_is_named(
    name: str, storage: Path, small_cell: Callable[..., Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    assert draw(name, "0123", storage) == 2
    assert "0123: no cell of" in capsys.readouterr().err
    cell = small_cell(*SHORT)
    finish(cell)
    (evaluations(storage, cell.signature).parent / "weights.ckpt").unlink()
    capsys.readouterr()
    assert draw(name, cell.signature, storage) == 2
    said = capsys.readouterr().err
    assert f"{cell.signature}: it has no weights.ckpt; import an export with weights" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("reconstructions", ["--failures", "-1"], "--failures must be >= 0, got -1"),
        (
            "reconstructions",
            ["--failures", "0", "--correct", "0"],
            "--correct, --failures: one of them must be above 0",
        ),
        ("segmentation", ["--starred", "-2"], "--starred must be >= 0, got -2"),
        ("perturbations", ["--classes", "three"], "--classes must be places such as 0,5,7"),
        ("perturbations", ["--examples=-1,2"], "--examples must be places from 0 on, got -1"),
        ("perturbations", ["--device", "nosuch"], "--device nosuch: "),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(
    name: str,
    options: list[str],
    message: str,
    storage: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert draw(name, "0123", storage, *options) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_places_and_classes_that_the_test_has_not_are_named(
    storage: Path, small_cell: Callable[..., Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    cell = small_cell(*SHORT)
    finish(cell)
    capsys.readouterr()
    assert draw("perturbations", cell.signature, storage, "--examples", "360") == 2
    assert f"{cell.signature} has the test images 0..359, got 360" in capsys.readouterr().err
    assert draw("perturbations", cell.signature, storage, "--classes", "3,12") == 2
    said = capsys.readouterr().err
    assert f"--classes: no test image of {cell.signature} shows class 12" in said


def test_a_page_knows_every_figure_by_its_name() -> None:
    assert tuple(figures.FIGURES) == EVALUATION_KINDS
    for kind in EVALUATION_KINDS:
        assert kind_of_evaluation(f"{kind}-class0.png") == kind
    assert kind_of_evaluation("worst-examples.png") == "worst-examples"
