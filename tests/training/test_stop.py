"""Training that ends at a given accuracy, of held-out digits and never of test digits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trained_cells import assert_equal, find_folder, kill_at, read_rows, train

from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.errors import AccuracyNotReachedError
from capsweep.training import callbacks

EPOCHS = 5

Ran = tuple[Cell, dict[str, Any]]


def cell_in(storage: Path, *overrides: str) -> Cell:
    """At most five epochs of a network with dropout, a checkpoint after each."""
    small = [f"places.storage={storage}", "logger=csv", f"epochs={EPOCHS}", "limit_batches=3"]
    fixed = ["batch_size=32", "trainer.accelerator=cpu", "trainer.checkpoint_interval=0"]
    return compose.cell(["model=cnn_small", *small, *fixed, *overrides])


@pytest.fixture(scope="module")
def endless_run(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run that stops nowhere, and its result."""
    cell = cell_in(tmp_path_factory.mktemp("endless"))
    return cell, train(cell)


@pytest.fixture(scope="module")
def reached(endless_run: Ran) -> int:
    """An epoch in the middle that is better than all before it."""
    accuracy = [callbacks.find_accuracy(row) for row in read_rows(endless_run[0])]
    better = [n for n in range(1, EPOCHS - 1) if accuracy[n] > max(accuracy[:n])]
    assert better, f"no epoch in the middle is better than those before it: {accuracy}"
    return better[-1]


@pytest.fixture(scope="module")
def goal(endless_run: Ran, reached: int) -> str:
    """The accuracy of exactly that epoch."""
    return f"stop_accuracy={callbacks.find_accuracy(read_rows(endless_run[0])[reached])!r}"


@pytest.fixture(scope="module")
def unbroken(goal: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run that ends there, and its result."""
    cell = cell_in(tmp_path_factory.mktemp("unbroken"), goal)
    return cell, train(cell)


def test_training_ends_after_the_first_epoch_that_reaches_the_accuracy(
    unbroken: Ran, endless_run: Ran, reached: int
) -> None:
    (cell, result), rows = unbroken, read_rows(endless_run[0])
    assert read_rows(cell) == rows[: reached + 1]
    assert (result["epochs"], result["steps"]) == (reached + 1, 3 * (reached + 1))
    last = {key: value for key, value in rows[reached].items() if key.startswith(("train", "val"))}
    assert last.items() <= result["metrics"].items()
    assert "test/error" in result["metrics"]
    assert not (find_folder(cell) / "resume.ckpt").exists()


def assert_same(broken: Cell, unbroken: Ran) -> None:
    result = train(broken)
    assert_equal(broken, unbroken[0])
    for key in ("metrics", "epochs", "steps"):
        assert result[key] == unbroken[1][key]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills", [[("row", -1), ("row", 0)], [("checkpoint", -1)], [("checkpoint", 0)]]
)
def test_a_run_killed_around_that_epoch_and_resumed_is_bitwise_equal_to_an_unbroken_one(
    kills: list[tuple[str, int]], unbroken: Ran, goal: str, reached: int, tmp_path: Path
) -> None:
    broken = cell_in(tmp_path, goal)
    for when, distance in kills:
        kill_at(broken, when, reached + distance)
    assert_same(broken, unbroken)


@pytest.mark.slow
def test_so_is_a_run_killed_after_its_very_last_epoch(endless_run: Ran, tmp_path: Path) -> None:
    broken = cell_in(tmp_path)
    kill_at(broken, "checkpoint", EPOCHS - 1)
    assert_same(broken, endless_run)


def test_a_cell_that_does_not_reach_it_fails_and_says_how_near_it_came(
    small_cell: Callable[..., Cell],
) -> None:
    cell = small_cell("stop_accuracy=1.0")
    message = r"stop_accuracy=1\.0 was not reached in 2 epochs \(best 0\.\d{4}\); raise epochs"
    with pytest.raises(AccuracyNotReachedError, match=message):
        train(cell)
    assert not (find_folder(cell) / "result.json").exists()
    assert "AccuracyNotReachedError" in (find_folder(cell) / "error.txt").read_text()


def test_the_last_epoch_must_reach_it_with_exactly_as_many_right_as_asked_for() -> None:
    early, late = ([{"val/error": e} for e in errors] for errors in ((0.1, 0.3), (0.3, 0.1)))
    callbacks.check_reached(0.9, late)
    with pytest.raises(AccuracyNotReachedError, match=r"stop_accuracy=0\.9 .*best 0\.9000"):
        callbacks.check_reached(0.9, early)
    for wrong in range(180):
        accuracy = float(f"{(180 - wrong) / 180:.10g}")  # as it would be typed
        assert callbacks.is_reached(accuracy, {"val/error": wrong / 180})
        assert not callbacks.is_reached(accuracy, {"val/error": (wrong + 1) / 180})
