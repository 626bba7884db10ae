"""`capsweep eval NAME CELL`: the figures of one cell."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from trained_cells import TINY_MATRIX, finish, forget_digests

from capsweep import cli
from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.errors import NotApplicableError
from capsweep.evaluation import figures
from capsweep.ledger.ledger import EVALUATION_KINDS, folder_of, kind_of_evaluation

TWO = ["dataset=multimnist", "dataset.source=digits", "dataset.batches.test_examples=200"]
SHORT = ["epochs=1", "limit_batches=1"]
DECODED = ("reconstructions", "perturbations", "segmentation")
MakeCell = Callable[..., Cell]
Output = pytest.CaptureFixture[str]


def draw(name: str, signature: str, storage: Path, *options: str) -> int:
    choices = [signature, "--storage", str(storage), "--device", "cpu", *options]
    return cli.main(["eval", name, *choices])


def find_folder(storage: Path, signature: str) -> Path:
    return storage / "ledger" / folder_of(signature) / "evals"


def read_numbers(storage: Path, signature: str, stem: str) -> dict[str, np.ndarray]:
    """Those beside a picture that is not blank."""
    folder = find_folder(storage, signature)
    picture = np.asarray(Image.open(folder / f"{stem}.png").convert("L"))
    assert (picture < 250).sum() > 3000
    with np.load(folder / f"{stem}.npz", allow_pickle=False) as stored:
        return dict(stored)


@pytest.fixture
def finished(small_cell: MakeCell, capsys: Output) -> str:
    """The signature of a finished cell of capsules with a decoder."""
    cell = small_cell(*SHORT)
    finish(cell)
    capsys.readouterr()
    return cell.signature


def test_figures_of_one_digit_are_pictures_with_their_numbers(
    storage: Path, small_cell: MakeCell, capsys: Output
) -> None:
    cell = small_cell("epochs=1")
    finish(cell)
    capsys.readouterr()
    name, folder = cell.signature, find_folder(storage, cell.signature)
    assert draw("reconstructions", name[:6], storage) == 0
    stem = "reconstructions-correct8-failures4"
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == [str(folder / f"{stem}.npz"), str(folder / f"{stem}.png")]
    numbers = read_numbers(storage, name, stem)
    assert str(numbers["caption"]) == printed[2]
    assert numbers["images"].shape == numbers["reconstructions"].shape == (16, 1, 28, 28)
    right = numbers["labels"] == numbers["predictions"]
    assert right.sum() == 8
    assert (numbers["drawn_from"][right] == numbers["labels"][right]).all()
    assert len(set(numbers["places"].tolist())) == 12
    assert draw("perturbations", name, storage, "--classes", "8,3") == 0
    pages = {"perturbations-class3.png", "perturbations-class8.png"}
    assert {path.name for path in folder.glob("perturbations*.png")} == pages
    assert draw("perturbations", name, storage, "--examples", "5") == 0
    (path,) = folder.glob("perturbations-class*-example5.png")
    numbers = read_numbers(storage, name, path.stem)
    assert numbers["reconstructions"].shape == (16, 11, 1, 28, 28)
    assert f"class{numbers['label']}-" in path.name


def test_figures_of_two_digits_are_pictures_with_their_numbers(
    storage: Path, small_cell: MakeCell
) -> None:
    cell = small_cell(*SHORT, *TWO)
    loader = finish(cell)
    options = ["--correct", "2", "--failures", "2"]
    assert draw("segmentation", cell.signature, storage, *options) == 0
    stem = "segmentation-correct2-failures2"
    numbers = read_numbers(storage, cell.signature, stem)
    assert numbers["reconstructions"].shape == numbers["digits"].shape == (6, 2, 1, 36, 36)
    with pytest.raises(NotApplicableError, match=f"{cell.signature}: .* ask for segmentation"):
        figures.draw_figure("reconstructions", loader, cell.signature)
    paths = figures.draw_figure("perturbations", loader, cell.signature)
    assert len(paths) == 20
    assert all(Path(path).exists() for path in paths)


def test_a_cell_of_dynamic_routing_has_changes_couplings_and_losses(
    storage: Path, small_cell: MakeCell, finished: str, capsys: Output
) -> None:
    finish(small_cell(*SHORT, "seed=1"))
    options = ["--iterations", "10", "--examples", "20"]
    assert draw("routing-change", finished[:6], storage, *options) == 0
    assert "first 20 test images, 10 routing iterations (trained with 3)" in capsys.readouterr().out
    change = read_numbers(storage, finished, "routing-change-iterations10-first20")
    assert (str(change["of"]), change["classes.mean"].shape) == ("logits", (10,))
    assert draw("couplings", finished, storage) == 0
    entropy = read_numbers(storage, finished, "couplings")
    assert entropy["classes.control"] == pytest.approx(np.log(10))
    assert entropy["classes.share.mean"][0] == pytest.approx(1)
    capsys.readouterr()
    assert draw("training-loss", finished, storage) == 0
    assert "evals/training-loss.png\n" in capsys.readouterr().out
    losses = read_numbers(storage, finished, "training-loss")
    assert losses["T3.loss"].shape == (2, 1)
    assert losses["T3.seeds"].tolist() == [0, 1]


@pytest.mark.parametrize("variant", ["em", "dynamic"])
def test_a_matrix_network_has_a_curve_for_each_layer(storage: Path, variant: str) -> None:
    cell = compose.cell([*TINY_MATRIX, f"routing={variant}", f"places.storage={storage}"])
    finish(cell)
    for name, ending in (("routing-change", ".mean"), ("couplings", ".control")):
        assert draw(name, cell.signature, storage, "--examples", "12") == 0
        numbers = read_numbers(storage, cell.signature, f"{name}-first12")
        layers = {key.removesuffix(ending) for key in numbers if key.endswith(ending)}
        assert layers >= {"capsules.0", "capsules.1", "classes"}


def test_distances_of_votes_have_a_figure_for_each_image(storage: Path, capsys: Output) -> None:
    cell = compose.cell([*TINY_MATRIX, f"places.storage={storage}"])
    finish(cell)
    name, figure = cell.signature, "vote-distances"
    assert draw(figure, name, storage, "--examples", "5,0") == 0
    assert "12 bins on [0, 0.05]" in capsys.readouterr().out
    for image in (0, 5):
        numbers = read_numbers(storage, name, f"{figure}-R-squared-12-0.05-example{image}")
        assert numbers["weight"].shape == (3, 10, 12)
        # Each child divides itself among the classes, in every iteration.
        total = (numbers["weight"].sum(axis=2) + numbers["beyond"]).sum(axis=1)
        np.testing.assert_allclose(total, total[0], rtol=1e-4)


def test_a_figure_that_a_cell_has_not_names_the_cell_and_what_it_lacks(
    storage: Path, small_cell: MakeCell, finished: str, capsys: Output
) -> None:
    network = small_cell("model=cnn_small", "model.hidden=8", *SHORT)
    loader = finish(network)
    cases = {
        "reconstructions": (network.signature, "its network has no decoder"),
        "perturbations": (network.signature, "loss.reconstruction.weight=0.0005"),
        "segmentation": (finished, "its images do not show two classes"),
        "routing-change": (network.signature, "its network does not route"),
        "couplings": (network.signature, "its network does not route"),
        "vote-distances": (finished, "its routing gives no distances of votes"),
    }
    for name, (signature, message) in cases.items():
        with pytest.raises(NotApplicableError, match=f"{signature}: its "):
            figures.draw_figure(name, loader, signature)
        capsys.readouterr()
        assert draw(name, signature, storage) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not list(find_folder(storage, signature).glob("[!w]*"))  # worst-examples alone


def test_a_cell_that_is_not_there_or_has_no_weights_is_named(
    storage: Path, finished: str, capsys: Output
) -> None:
    (find_folder(storage, finished).parent / "weights.ckpt").unlink()
    for name in DECODED:
        assert draw(name, "0123", storage) == 2
        assert "0123: no cell of" in capsys.readouterr().err
        assert draw(name, finished, storage) == 2
        error = capsys.readouterr().err
        assert f"{finished}: it has no weights.ckpt; import an export with weights" in error
        assert error.count("\n") == 1


def test_a_network_that_says_something_else_than_in_its_test_is_refused(
    storage: Path, finished: str, capsys: Output
) -> None:
    path = find_folder(storage, finished).with_name("weights.ckpt")
    weights = torch.load(path, weights_only=True)
    weights["classes.weight_IJDP"] = weights["classes.weight_IJDP"].flip(1)
    torch.save(weights, path)
    assert draw("couplings", finished, storage, "--examples", "50") == 2
    assert "weights.ckpt is damaged (it was altered" in capsys.readouterr().err
    forget_digests(path.with_name("result.json"))
    for name in ("routing-change", "couplings"):
        assert draw(name, finished, storage, "--examples", "50") == 2
        assert "otherwise than its predictions.npz says" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("reconstructions", ["--failures", "-1"], "--failures: must be a whole number >= 0"),
        ("perturbations", ["--classes", "three"], "--classes: must be places such as 0,5,7"),
        ("couplings", ["--iterations", "0"], "--iterations: must be a whole number >= 1, got 0"),
        ("vote-distances", ["--weights", "Ra"], "--weights is no more: leave it out"),
        ("segmentation", ["--starred", "2"], "--starred is no more: use --correct"),
    ],
)
def test_a_wrong_option_is_named_with_status_2(
    name: str, options: list[str], message: str, storage: Path, capsys: Output
) -> None:
    try:
        status = draw(name, "0123", storage, *options)
    except SystemExit as exit_of_parser:
        status = exit_of_parser.code
    assert status == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_every_figure_is_found_and_known_to_pages() -> None:
    assert tuple(figures.FIGURES) == EVALUATION_KINDS
    files = {path.stem for path in Path(figures.__file__).parent.glob("[!_]*.py")}
    assert {name.replace("-", "_") for name in figures.FIGURES} == files
    for kind in EVALUATION_KINDS:
        assert callable(figures.load_figure(kind).draw_cell)
        assert kind_of_evaluation(f"{kind}-class0.png") == kind
    assert kind_of_evaluation("worst-examples.png") == "worst-examples"
