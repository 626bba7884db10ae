"""`capsweep eval routing-change`, `couplings` and `training-loss`: the figures of one cell."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from finished_cells import TINY_MATRIX, finish, forget_digests
from PIL import Image

from capsweep import cli
from capsweep.config import compose
from capsweep.config.cell import Cell


def draw(name: str, signature: str, storage: Path, *options: str) -> int:
    choices = [signature, "--storage", str(storage), "--device", "cpu", *options]
    return cli.main(["eval", name, *choices])


def finished(cell: Cell) -> str:
    finish(cell)
    return cell.signature


def numbers(storage: Path, signature: str, stem: str) -> dict[str, np.ndarray]:
    """Those beside a picture that is not blank."""
    folder = storage / "ledger" / signature[:2] / signature / "evals"
    picture = np.asarray(Image.open(folder / f"{stem}.png").convert("L"))
    assert (picture < 250).sum() > 3000
    with np.load(folder / f"{stem}.npz", allow_pickle=False) as found:
        return dict(found)


def test_a_cell_of_dynamic_routing_has_all_three(
    storage: Path, small_cell: Callable[..., Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    signature = finished(small_cell("epochs=1", "limit_batches=1"))
    finished(small_cell("epochs=1", "limit_batches=1", "seed=1"))
    assert draw("routing-change", signature[:6], storage) == 0
    change = numbers(storage, signature, "routing-change")
    assert (str(change["of"]), change["classes.mean"].shape) == ("logits", (3,))
    assert draw("couplings", signature, storage) == 0
    entropy = numbers(storage, signature, "couplings")
    assert entropy["classes.control"] == pytest.approx(np.log(10))
    assert entropy["classes.share.mean"][0] == pytest.approx(1)
    capsys.readouterr()
    assert draw("training-loss", signature, storage) == 0
    said = capsys.readouterr()
    assert f"{signature}: its ledger has cells with routing.num_iters=3 alone" in said.err
    assert "evals/training-loss.png\n" in said.out
    losses = numbers(storage, signature, "training-loss")
    assert losses["T3.loss"].shape == (2, 1)
    assert losses["T3.seeds"].tolist() == [0, 1]


def test_options_that_are_not_the_defaults_are_part_of_the_name(
    storage: Path, small_cell: Callable[..., Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    signature = finished(small_cell("epochs=1", "limit_batches=1"))
    options = ["--iterations", "10", "--examples", "20"]
    assert draw("routing-change", signature, storage, *options) == 0
    assert "first 20 test images, 10 routing iterations (trained with 3)" in capsys.readouterr().out
    stem = "routing-change-iterations10-first20"
    assert numbers(storage, signature, stem)["classes.quantiles"].shape == (5, 10)
    assert draw("couplings", signature, storage, "--iterations", "2") == 0
    assert numbers(storage, signature, "couplings-iterations2")["classes.nats.mean"].shape == (2,)


@pytest.mark.parametrize("variant", ["em", "dynamic"])
def test_a_matrix_network_has_a_curve_for_each_layer(storage: Path, variant: str) -> None:
    overrides = [*TINY_MATRIX, f"routing={variant}", f"places.storage={storage}"]
    signature = finished(compose.cell(overrides))
    layers = {"capsules.0", "capsules.1", "classes"}
    for name in ("routing-change", "couplings"):
        assert draw(name, signature, storage, "--examples", "12") == 0
        found = numbers(storage, signature, f"{name}-first12")
        ending = ".mean" if name == "routing-change" else ".control"
        assert {key.removesuffix(ending) for key in found if key.endswith(ending)} >= layers


def test_what_a_cell_has_not_is_said_with_its_name(
    storage: Path, small_cell: Callable[..., Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    signature = finished(small_cell("model=cnn_small", "model.hidden=8", "epochs=1"))
    for name in ("routing-change", "couplings"):
        assert draw(name, signature, storage) == 2
        assert f"{signature}: its network does not route" in capsys.readouterr().err
    assert draw("training-loss", signature, storage) == 0
    assert "does not route" in capsys.readouterr().err
    for option in ("--examples", "--iterations"):
        assert draw("couplings", signature, storage, option, "0") == 2
        assert f"{option} must be >= 1, got 0" in capsys.readouterr().err


def test_a_network_that_says_something_else_than_in_its_test_is_refused(
    storage: Path, small_cell: Callable[..., Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    signature = finished(small_cell("epochs=1", "limit_batches=1"))
    path = storage / "ledger" / signature[:2] / signature / "weights.ckpt"
    weights = torch.load(path, weights_only=True)
    weights["classes.weight_IJDP"] = weights["classes.weight_IJDP"].flip(1)
    torch.save(weights, path)
    assert draw("couplings", signature, storage, "--examples", "50") == 2
    assert "weights.ckpt is damaged (it was altered" in capsys.readouterr().err
    forget_digests(path.with_name("result.json"))
    for name in ("routing-change", "couplings"):
        assert draw(name, signature, storage, "--examples", "50") == 2
        assert "otherwise than its predictions.npz says" in capsys.readouterr().err
