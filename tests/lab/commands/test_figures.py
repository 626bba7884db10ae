"""`capsweep eval NAME CELL`: the figures of one cell; `eval figures`: those of a sweep."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from trained_cells import TINY_MATRIX, finish

from capsweep import cli
from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.ledger.ledger import folder_of

TWO = ["dataset=multimnist", "dataset.source=digits", "dataset.batches.test_examples=200"]
SHORT = ["epochs=1", "limit_batches=1"]
MakeCell = Callable[..., Cell]
Output = pytest.CaptureFixture[str]


def draw(name: str, signature: str, storage: Path, *options: str) -> int:
    choices = [signature, f"STORAGE={storage}", "--device", "cpu", *options]
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
    assert (numbers["labels"] == numbers["predictions"]).sum() == 8
    assert draw("perturbations", name, storage) == 0
    assert len({path.name for path in folder.glob("perturbations-class?.png")}) == 10
    page = read_numbers(storage, name, "perturbations-class5")
    assert page["reconstructions"].shape == (16, 11, 1, 28, 28)


def test_figures_of_two_digits_are_pictures_with_their_numbers(
    storage: Path, small_cell: MakeCell
) -> None:
    cell = small_cell(*SHORT, *TWO)
    finish(cell)
    options = ["--correct", "2", "--failures", "2"]
    assert draw("segmentation", cell.signature, storage, *options) == 0
    numbers = read_numbers(storage, cell.signature, "segmentation-correct2-failures2")
    assert numbers["reconstructions"].shape == numbers["digits"].shape == (6, 2, 1, 36, 36)


def test_a_cell_of_dynamic_routing_has_changes_and_couplings(storage: Path, finished: str) -> None:
    options = ["--iterations", "10", "--examples", "20"]
    assert draw("routing-change", finished[:6], storage, *options) == 0
    change = read_numbers(storage, finished, "routing-change-iterations10-first20")
    assert (str(change["of"]), change["classes.mean"].shape) == ("logits", (10,))
    assert draw("couplings", finished, storage) == 0
    entropy = read_numbers(storage, finished, "couplings")
    assert entropy["classes.control"] == pytest.approx(np.log(10))
    assert read_numbers(storage, finished, "couplings-map")["classes.map"].shape == (2, 10)
    assert read_numbers(storage, finished, "couplings-image0")["classes.places"].shape[2] == 10
    assert draw("couplings", finished, storage, "--image", "1000") == 2


def test_a_matrix_network_has_a_curve_for_each_layer_and_distances_of_votes(storage: Path) -> None:
    cell = compose.cell([*TINY_MATRIX, f"places.storage={storage}"])
    finish(cell)
    for name, ending in (("routing-change", ".mean"), ("couplings", ".control")):
        assert draw(name, cell.signature, storage, "--examples", "12") == 0
        numbers = read_numbers(storage, cell.signature, f"{name}-first12")
        layers = {key.removesuffix(ending) for key in numbers if key.endswith(ending)}
        assert layers >= {"capsules.0", "capsules.1", "classes"}
    assert draw("vote-distances", cell.signature, storage, "--examples", "5,0") == 0
    for image in (0, 5):
        stem = f"vote-distances-R-squared-12-0.05-example{image}"
        numbers = read_numbers(storage, cell.signature, stem)
        assert numbers["weight"].shape == (3, 10, 12)


def test_a_figure_that_a_cell_has_not_names_the_cell_and_what_it_lacks(
    storage: Path, small_cell: MakeCell, finished: str, capsys: Output
) -> None:
    network = small_cell("model=cnn_small", "model.hidden=8", *SHORT)
    finish(network)
    cases = {
        "reconstructions": (network.signature, "its network has no decoder"),
        "segmentation": (finished, "each of its images has 1 label"),
        "routing-change": (network.signature, "its network does not route"),
        "vote-distances": (finished, "its routing computes no distances of votes"),
    }
    capsys.readouterr()
    for name, (signature, message) in cases.items():
        assert draw(name, signature, storage) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {signature}: ")
        assert message in error
        assert error.count("\n") == 1
        assert not list(find_folder(storage, signature).glob("[!w]*"))  # worst-examples alone


def test_a_row_gets_the_figure_of_its_first_seed_once_and_the_page_shows_it(
    storage: Path, sweep: Path, capsys: Output
) -> None:
    where = [str(sweep), f"STORAGE={storage}", "SEEDS=2"]
    assert cli.main(["sweep", *where, "EXECUTOR=local"]) == 0
    capsys.readouterr()
    words = ["eval", "figures", *where, "--device", "cpu", "--only", "reconstructions"]
    assert cli.main(words) == 0
    (drawn,) = storage.glob("ledger/*/*/evals/reconstructions*.png")
    assert ": its network has no decoder" in capsys.readouterr().out
    before = drawn.stat().st_mtime_ns
    assert cli.main(words) == 0
    assert drawn.stat().st_mtime_ns == before
    assert cli.main(["report", *where]) == 0
    assert "Reconstructions" in (storage / "reports/three-SEEDS=2/index.html").read_text().title()
    (drawn.parents[1] / "weights.ckpt").unlink()
    drawn.unlink()
    capsys.readouterr()
    assert cli.main(words) == 2
    assert f"error: {drawn.parents[1].name}: its weights.ckpt is missing" in capsys.readouterr().err
    assert cli.main([*words[:-1], "portraits"]) == 2
    assert "--only: must be some of reconstructions, " in capsys.readouterr().err
