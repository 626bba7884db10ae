"""Captured steps. On a processor "capture" just calls: static tensors, order and counters are the
same code there, and cells must be those of ordinary steps to the last bit.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filled_overrides import fill_overrides
from torch import Tensor
from trained_cells import assert_equal, read_outputs, read_provenance, train

from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.errors import LeftEarlyError, NonFiniteLossError
from capsweep.model.losses import cross_entropy
from capsweep.model.routing import controls
from capsweep.training import RunHooks, build
from capsweep.training.graphs import StepGraphs
from capsweep.training.module import CapsuleTask
from capsweep.training.step import Objective

Run = Any  # what is captured: a method of CapturedStep
SMALL = (
    *("logger=csv", "trainer.checkpoint_interval=0", "epochs=3", "batch_size=400"),
    "trainer.accelerator=cpu",
)
CAPSNET = ("model.conv.channels=4", "model.primary.types=2", "model.decoder.hidden=[8]")
MATRIX = ("model=matrix_capsnet_tiny", "loss=spread", "batch_size=4", "limit_batches=4")
CELLS = {
    "margin loss, decoder, a smaller last batch": CAPSNET,
    "dropout": ("model=cnn_small", "model.dropout=0.5"),
    "bfloat16, clipped, not fused, no decoder": (
        *(*CAPSNET, "precision=bf16-mixed", "optim.clip_norm=0.1"),
        *("trainer.fused_optimizer=false", "loss.reconstruction.weight=0"),
    ),
    "EM routing, a margin that grows, a warm-up, decay of weights": (
        *(*MATRIX, "routing=em", "routing.num_iters=2", "optim.decayed=weights"),
        *("optim.schedule.warmup=5", "optim.clip_norm=1.0", "optim.optimizer.weight_decay=0.01"),
        "loss.class_weight=balanced",
    ),
    "pairs of digits": (
        *("experiment=overlap", "model.conv.channels=4", "model.primary.types=2", "epochs=3"),
        *("batch_size=100", "limit_batches=4"),
    ),
    "couplings drawn, classes weighed": (*CAPSNET, "routing=random", "loss.class_weight=balanced"),
}

FULL = ("model.decoder.hidden=[64]", "routing.num_iters=3", "batch_size=32", "epochs=5")


def make_cell(storage: Path, *overrides: str) -> Cell:
    """A small cell."""
    return compose.cell(fill_overrides(overrides, *SMALL, f"places.storage={storage}"))


def capture_by(
    monkeypatch: pytest.MonkeyPatch, capture: Callable[[Run], Run] = lambda run: run
) -> list[StepGraphs]:
    """Let cells train by steps that are captured so; what trained them, one after the other."""
    made = []

    def make_graphs(task: CapsuleTask, optimizer: torch.optim.Optimizer) -> StepGraphs:
        graphs = ordinary(task, optimizer)
        made.append(StepGraphs(graphs.step, graphs.metrics, None, capture))
        return made[-1]

    ordinary = CapsuleTask.make_graphs
    monkeypatch.setattr(CapsuleTask, "make_graphs", make_graphs)
    return made


@pytest.mark.parametrize("overrides", CELLS.values(), ids=CELLS)
def test_a_cell_of_captured_steps_is_that_of_ordinary_ones(
    overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary, captured = (make_cell(tmp_path / name, *overrides) for name in "oc")
    train(ordinary)
    graphs = capture_by(monkeypatch)
    train(captured)
    assert_equal(captured, ordinary)
    assert graphs[0].reason is None
    assert read_provenance(captured)["graphs"].startswith("captured, batches of ")


@pytest.mark.gpu
@pytest.mark.parametrize("overrides", [*CELLS.values(), FULL], ids=[*CELLS, "200 steps"])
def test_a_captured_cell_of_a_gpu_is_its_eager_one(
    overrides: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eager, again, captured = (
        make_cell(
            tmp_path / name, *overrides, f"trainer.graphs={graphs}", "trainer.accelerator=gpu"
        )
        for name, graphs in (("eager", "off"), ("again", "off"), ("captured", "auto"))
    )
    for cell in (eager, again, captured):
        train(cell)
    assert "trainer.graphs" not in capsys.readouterr().err
    weights, repeated, found = (read_outputs(cell)[0] for cell in (eager, again, captured))
    with capsys.disabled():
        for name, other in (("eager again", repeated), ("captured", found)):
            difference = max(float((weights[key] - other[key]).abs().max()) for key in weights)
            print(f"\n{name}: largest difference of a weight {difference:.3g}", end="")
    for key, expected in weights.items():
        torch.testing.assert_close(found[key], expected, rtol=0, atol=1e-5)


@pytest.mark.gpu
def test_a_network_that_waits_for_the_device_is_trained_eagerly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("model=cnn_small", "model.dropout=0.5", "trainer.accelerator=gpu")
    eager, captured = (
        make_cell(tmp_path / graphs, *settings, f"trainer.graphs={graphs}")
        for graphs in ("off", "auto")
    )

    def measure(logit_BN: Tensor, target_BN: Tensor) -> Tensor:
        loss = cross_entropy(logit_BN, target_BN)
        return loss * (1 if loss.item() > 0 else 0)

    monkeypatch.setattr(build, "build_objective", lambda _: Objective(measure, 0, True))
    train(eager)
    train(captured)
    assert "its step cannot be captured" in capsys.readouterr().err
    for found, expected in zip(read_outputs(captured), read_outputs(eager), strict=True):
        for key, value in expected.items():
            torch.testing.assert_close(torch.as_tensor(found[key]), torch.as_tensor(value))


@pytest.mark.gpu
def test_a_routing_that_draws_on_the_processor_is_trained_eagerly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn_here = property(lambda layer: layer.draw_LJ * float(torch.rand(())))
    monkeypatch.setattr(controls.RandomRouting, "prior_LJ", drawn_here)
    train(make_cell(tmp_path, *CAPSNET, "routing=random", "trainer.accelerator=gpu"))
    assert "draws random numbers on the processor" in capsys.readouterr().err


@pytest.mark.parametrize("is_captured_first", [True, False], ids=["captured", "ordinary"])
def test_a_cell_goes_on_with_the_other_kind_of_step(
    is_captured_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("model=cnn_small", "epochs=4")
    whole, broken = (make_cell(tmp_path / name, *settings) for name in ("whole", "broken"))
    train(whole)
    cut = RunHooks(on_epoch=lambda row: row["epoch"] == 1)  # its checkpoint is kept
    for hooks, is_captured in ((cut, is_captured_first), (None, not is_captured_first)):
        with monkeypatch.context() as patched:
            if is_captured:
                capture_by(patched)
            with pytest.raises(LeftEarlyError) if hooks else contextlib.nullcontext():
                train(broken, hooks)
    assert_equal(broken, whole)


def test_a_cell_that_fails_leaves_the_memory_of_its_graphs_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = capture_by(monkeypatch)
    with pytest.raises(NonFiniteLossError):
        train(make_cell(tmp_path, "model=cnn_small", "optim.optimizer.lr=1e30", "batch_size=100"))
    (graphs,) = made
    assert graphs.captured_sizes == {100}
    assert not graphs.captured


def read_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line that was said of graphs."""
    (line,) = (text for text in capsys.readouterr().err.splitlines() if "trainer.graphs" in text)
    return line


def test_a_cell_whose_steps_cannot_be_captured_is_trained_eagerly_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(run: Run) -> Run:
        raise RuntimeError("not permitted when stream is capturing\nand more of CUDA's lines")

    ordinary, captured = (make_cell(tmp_path / name, *CAPSNET) for name in "oc")
    train(ordinary)
    capture_by(monkeypatch, refuse)
    train(captured)
    assert_equal(captured, ordinary)
    why = "its step cannot be captured: not permitted when stream is capturing"
    assert why in read_line(capsys)
    assert read_provenance(captured)["graphs"].startswith(f"off: {why}")


def test_on_a_gpu_an_optimiser_without_a_capturable_form_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build_optimizer(config: Any) -> Any:
        return lambda network: torch.optim.SGD(network.parameters(), lr=0.1)

    monkeypatch.setattr(build, "build_optimizer", build_optimizer)
    monkeypatch.setattr(CapsuleTask, "device", torch.device("cuda"))  # as if it trained there
    train(make_cell(tmp_path, *CAPSNET, "epochs=1"))
    assert read_line(capsys).endswith("without CUDA graphs, because SGD has no capturable form")
