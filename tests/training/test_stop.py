"""Training that ends at a given accuracy, of held-out digits and never of test digits."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import warm_processes

from capsweep.config import compose, places
from capsweep.config.cell import Cell
from capsweep.errors import AccuracyNotReachedError, ConfigError
from capsweep.ledger.ledger import folder_of
from capsweep.training import callbacks
from capsweep.training.run import run

EPOCHS = 5

# Runs a cell, and ends its own process with SIGKILL at an epoch: before its checkpoint is written
# ("row"), or right after.
KILLED = """
import os, signal, sys
from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.training.checkpoint import ResumeCheckpoint
from capsweep.training.run import run
cell, when, last = Cell.from_json(sys.argv[1]), sys.argv[2], int(sys.argv[3])
keep = ResumeCheckpoint.on_train_epoch_end
def kept_and_killed(self, trainer, module):
    if when == "checkpoint":
        keep(self, trainer, module)
    if trainer.current_epoch == last:
        os.kill(os.getpid(), signal.SIGKILL)
    if when == "row":
        keep(self, trainer, module)
ResumeCheckpoint.on_train_epoch_end = kept_and_killed
run(cell, places.resolve(cell.config["places"]))
"""


def cell_in(storage: Path, *overrides: str) -> Cell:
    """At most five epochs of a network with dropout, a checkpoint after each."""
    small = [f"places.storage={storage}", "logger=csv", f"epochs={EPOCHS}", "limit_batches=3"]
    fixed = ["batch_size=32", "trainer.accelerator=cpu", "trainer.checkpoint_interval=0"]
    return compose.cell(["model=cnn_small", *small, *fixed, *overrides])


def ran(cell: Cell) -> dict[str, Any]:
    return run(cell, places.resolve(cell.config["places"]))


def folder(cell: Cell) -> Path:
    return Path(places.resolve(cell.config["places"]).ledger) / folder_of(cell.signature)


def rows(cell: Cell) -> list[dict[str, Any]]:
    """Of all epochs, without their durations."""
    lines = (folder(cell) / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cell, dict[str, Any]]:
    """A run that stops nowhere, and its result."""
    cell = cell_in(tmp_path_factory.mktemp("endless"))
    return cell, ran(cell)


@pytest.fixture(scope="module")
def whole(endless: tuple[Cell, dict[str, Any]]) -> list[dict[str, Any]]:
    """The epochs of that run."""
    return rows(endless[0])


@pytest.fixture(scope="module")
def reached(whole: list[dict[str, Any]]) -> int:
    """An epoch in the middle that is better than all before it."""
    accuracy = [callbacks.find_accuracy(row) for row in whole]
    better = [n for n in range(1, EPOCHS - 1) if accuracy[n] > max(accuracy[:n])]
    assert better, f"no epoch in the middle is better than those before it: {accuracy}"
    return better[-1]


@pytest.fixture(scope="module")
def goal(whole: list[dict[str, Any]], reached: int) -> str:
    """The accuracy of exactly that epoch."""
    return f"stop_accuracy={callbacks.find_accuracy(whole[reached])!r}"


@pytest.fixture(scope="module")
def unbroken(goal: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Cell, dict[str, Any]]:
    """A run that ends there, and its result."""
    cell = cell_in(tmp_path_factory.mktemp("unbroken"), goal)
    return cell, ran(cell)


def test_training_ends_after_the_first_epoch_that_reaches_the_accuracy(
    unbroken: tuple[Cell, dict[str, Any]], whole: list[dict[str, Any]], reached: int
) -> None:
    cell, result = unbroken
    assert rows(cell) == whole[: reached + 1]
    assert (result["epochs"], result["steps"]) == (reached + 1, 3 * (reached + 1))
    last = {
        key: value for key, value in whole[reached].items() if key.startswith(("train/", "val/"))
    }
    assert last.items() <= result["metrics"].items()
    assert "test/error" in result["metrics"]
    assert not (folder(cell) / "resume.ckpt").exists()


def outputs(cell: Cell) -> tuple[dict[str, torch.Tensor], dict[str, np.ndarray]]:
    """Weights and predictions."""
    weights = torch.load(folder(cell) / "weights.ckpt", weights_only=True)
    with np.load(folder(cell) / "predictions.npz", allow_pickle=False) as stored:
        return weights, dict(stored)


def kill(cell: Cell, when: str, epoch: int) -> None:
    """Run the cell in a process that ends itself there."""
    process = warm_processes.run(["-c", KILLED, cell.to_json(), when, str(epoch)])
    assert process.returncode == -signal.SIGKILL


def assert_same(broken: Cell, result: dict[str, Any], unbroken: tuple[Cell, dict]) -> None:
    assert rows(broken) == rows(unbroken[0])
    for key in ("metrics", "epochs", "steps"):
        assert result[key] == unbroken[1][key]
    for one, other in zip(outputs(broken), outputs(unbroken[0]), strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(np.asarray(one[k]), np.asarray(other[k])) for k in one)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills", [[("row", -1), ("row", 0)], [("checkpoint", -1)], [("checkpoint", 0)]]
)
def test_a_run_killed_around_that_epoch_and_resumed_is_bitwise_equal_to_an_unbroken_one(
    kills: list[tuple[str, int]],
    unbroken: tuple[Cell, dict[str, Any]],
    goal: str,
    reached: int,
    tmp_path: Path,
) -> None:
    broken = cell_in(tmp_path, goal)
    for when, distance in kills:
        kill(broken, when, reached + distance)
    assert_same(broken, ran(broken), unbroken)


@pytest.mark.slow
def test_so_is_a_run_killed_after_its_very_last_epoch(
    endless: tuple[Cell, dict[str, Any]], tmp_path: Path
) -> None:
    broken = cell_in(tmp_path)
    kill(broken, "checkpoint", EPOCHS - 1)
    assert_same(broken, ran(broken), endless)


def test_a_cell_that_does_not_reach_it_fails_and_says_how_near_it_came(
    small_cell: Callable[..., Cell],
) -> None:
    cell = small_cell("stop_accuracy=1.0")
    with pytest.raises(AccuracyNotReachedError) as failed:
        ran(cell)
    best = max(map(callbacks.find_accuracy, rows(cell)))
    expected = f"stop_accuracy=1.0 was not reached in 2 epochs (best {best:.4f}); raise epochs"
    assert str(failed.value).startswith(expected)
    assert not (folder(cell) / "result.json").exists()
    assert "AccuracyNotReachedError" in (folder(cell) / "error.txt").read_text()


def test_reaching_it_in_the_last_epoch_is_enough_and_before_it_is_not() -> None:
    early, late = ([{"val/error": e} for e in errors] for errors in ((0.1, 0.3), (0.3, 0.1)))
    callbacks.check_reached(0.9, late)
    with pytest.raises(AccuracyNotReachedError, match=r"stop_accuracy=0\.9 .*best 0\.9000"):
        callbacks.check_reached(0.9, early)


@pytest.mark.parametrize("count", [100, 180, 5000])
def test_exactly_as_many_right_as_asked_for_are_enough_and_one_fewer_is_not(count: int) -> None:
    for wrong in range(count):
        accuracy = float(f"{(count - wrong) / count:.10g}")  # as it would be typed
        assert callbacks.is_reached(accuracy, {"val/error": wrong / count})
        assert not callbacks.is_reached(accuracy, {"val/error": (wrong + 1) / count})


@pytest.mark.parametrize("dataset", ["mnist", "digits"])
def test_without_held_out_examples_it_is_refused_in_the_plan(dataset: str) -> None:
    with pytest.raises(ConfigError, match=r"stop_accuracy .*dataset\.validation=0 holds none out"):
        compose.cell([f"dataset={dataset}", "dataset.validation=0", "stop_accuracy=0.9"])


@pytest.mark.parametrize("accuracy", ["99.23", "-0.1", "high"])
def test_it_is_a_fraction(accuracy: str) -> None:
    with pytest.raises(ConfigError, match=r"stop_accuracy must be null or in \[0, 1\]"):
        compose.cell([f"stop_accuracy={accuracy}"])


def test_runs_that_stop_elsewhere_or_nowhere_are_other_cells() -> None:
    goals = ["null", "0.9", "0.95"]
    assert len({compose.cell([f"stop_accuracy={goal}"]).signature for goal in goals}) == 3
    assert compose.cell(["stop_accuracy=null"]).signature == compose.cell([]).signature
