"""A run killed at any epoch and resumed ends bitwise equal to an unbroken one; so does one that
ends at an accuracy, of held-out digits and never of test digits.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import shard_folders
import torch
from filled_overrides import fill_overrides
from trained_cells import assert_equal, find_folder, kill_at, read_rows, train

from capsweep.config import code_identity, compose, places
from capsweep.config.cell import Cell
from capsweep.errors import AccuracyNotReachedError, DataError
from capsweep.ledger.ledger import Ledger
from capsweep.shards.reader import declare_data_set
from capsweep.sweep import plan
from capsweep.sweep.estimates import read_estimates
from capsweep.sweep.expand import Point
from capsweep.sweep.plan import Start
from capsweep.training import RunHooks, callbacks

EPOCHS = 5
SCHEDULE = "loss.classification.schedule"
CAPSNET = ("model.conv.channels=8", "model.primary.types=2")


def make_resumable(storage: Path, *overrides: str) -> Cell:
    """Five epochs with dropout or a decoder, a checkpoint after each."""
    small = [f"places.storage={storage}", "logger=csv", f"epochs={EPOCHS}", "limit_batches=3"]
    fixed = ["batch_size=16", "trainer.accelerator=cpu", "trainer.checkpoint_interval=0"]
    return compose.cell(fill_overrides(overrides, *small, *fixed))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    """A cell that nothing has disturbed, and that stops nowhere."""
    cell = make_resumable(tmp_path_factory.mktemp("unbroken"), "model=cnn_small")
    train(cell)
    return cell


def assert_goes_on(broken: Cell, unbroken: Cell, kills: Sequence[tuple[str, int]]) -> None:
    """Kill a cell at epochs, before or after their checkpoint; it ends as the unbroken one."""
    for when, epoch in kills:
        kill_at(broken, when, epoch)
    result, expected = train(broken), train(unbroken)  # or what is stored of it
    assert_equal(broken, unbroken)
    for key in ("metrics", "epochs", "steps"):
        assert result[key] == expected[key]


def slow_case(*overrides: str) -> Any:
    """A network that `make test` leaves to `make test-all`."""
    return pytest.param(overrides, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "model",
    [
        CAPSNET,
        slow_case(*CAPSNET, "precision=bf16-mixed"),
        # A margin that grows with training, and steps that warm up.
        slow_case(
            *("model=matrix_capsnet_tiny", "routing.num_iters=2", "optim.decayed=weights"),
            *("optim.clip_norm=1.0", "optim.schedule.warmup=7"),
        ),
    ],
)
def test_a_killed_and_resumed_run_is_bitwise_equal_to_an_unbroken_one(
    tmp_path: Path, model: tuple[str, ...]
) -> None:
    unbroken, broken = (make_resumable(tmp_path / name, *model) for name in ("unbroken", "broken"))
    assert_goes_on(broken, unbroken, [("row", 0), ("row", 2), ("row", 3)])


@pytest.mark.slow
def test_so_is_a_run_killed_after_its_very_last_epoch(unbroken: Cell, tmp_path: Path) -> None:
    broken = make_resumable(tmp_path, "model=cnn_small")
    assert_goes_on(broken, unbroken, [("row", 2), ("checkpoint", EPOCHS - 1)])


@pytest.mark.slow
def test_a_run_on_shards_is_resumed_in_the_pass_where_it_was_killed(tmp_path: Path) -> None:
    whole = shard_folders.make(tmp_path / "shards")
    data = [
        "dataset=multimnist_shards",
        *declare_data_set(whole.content),
        f"dataset.shards.folders=[{tmp_path / 'shards'}]",
        "dataset.batches.epoch_examples=700",  # a pass has 2,874
        "dataset.batches.test_examples=50",
        "loss.reconstruction.weight=0",
    ]
    small = [*CAPSNET, "batch_size=128"]
    unbroken, broken = (make_resumable(tmp_path / name, *data, *small) for name in "ub")
    assert_goes_on(broken, unbroken, [("row", 1), ("row", 3)])


@pytest.fixture(scope="module")
def reached(unbroken: Cell) -> int:
    """An epoch in the middle that is better than all before it."""
    accuracy = [callbacks.find_accuracy(row) for row in read_rows(unbroken)]
    better = [n for n in range(1, EPOCHS - 1) if accuracy[n] > max(accuracy[:n])]
    assert better, f"no epoch in the middle is better than those before it: {accuracy}"
    return better[-1]


@pytest.fixture(scope="module")
def stopped(unbroken: Cell, reached: int, tmp_path_factory: pytest.TempPathFactory) -> Cell:
    """A run that ends at the accuracy of exactly that epoch."""
    goal = f"stop_accuracy={callbacks.find_accuracy(read_rows(unbroken)[reached])!r}"
    cell = make_resumable(tmp_path_factory.mktemp("stopped"), "model=cnn_small", goal)
    train(cell)
    return cell


def test_training_ends_after_the_first_epoch_that_reaches_the_accuracy(
    stopped: Cell, unbroken: Cell, reached: int
) -> None:
    result, rows = train(stopped), read_rows(unbroken)
    assert read_rows(stopped) == rows[: reached + 1]
    assert (result["epochs"], result["steps"]) == (reached + 1, 3 * (reached + 1))
    last = {key: value for key, value in rows[reached].items() if key.startswith(("train", "val"))}
    assert last.items() <= result["metrics"].items()
    assert "test/error" in result["metrics"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills", [[("row", -1), ("row", 0)], [("checkpoint", -1)], [("checkpoint", 0)]]
)
def test_a_run_killed_around_that_epoch_ends_there_too(
    kills: list[tuple[str, int]], stopped: Cell, reached: int, tmp_path: Path
) -> None:
    goal = f"stop_accuracy={stopped.config['stop_accuracy']!r}"
    broken = make_resumable(tmp_path, "model=cnn_small", goal)
    assert_goes_on(broken, stopped, [(when, reached + distance) for when, distance in kills])


def find_start(cell: Cell) -> Start:
    ledger = Ledger(places.resolve(cell.config["places"]).ledger)
    return plan.find_start(cell, ledger, {*ledger.list_signatures()})


@pytest.mark.parametrize(
    "model",
    [
        (*CAPSNET, "loss.reconstruction.weight=0.0005"),
        ("model=matrix_capsnet_tiny", "routing=em", "loss=spread", f"{SCHEDULE}=sigmoid"),
        pytest.param((*CAPSNET, "trainer.accelerator=gpu"), marks=pytest.mark.gpu),
    ],
)
def test_a_cell_that_continues_a_finished_one_is_bitwise_equal_to_an_unbroken_one(
    tmp_path: Path, model: tuple[str, ...]
) -> None:
    unbroken = make_resumable(tmp_path / "unbroken", *model, "epochs=4")
    one, two, four = (make_resumable(tmp_path, *model, f"epochs={n}") for n in (1, 2, 4))
    whole, _, short = (train(cell) for cell in (unbroken, one, two))
    assert find_start(four) == Start(two.signature, 2)
    kill_at(four, "checkpoint", 2, shorter=two.signature)
    epochs = []
    result = train(four, RunHooks(on_epoch=lambda row: epochs.append(row["epoch"])))
    assert epochs == [3]
    assert_equal(four, unbroken)
    alike = "metrics", "epochs", "steps", "first_activations", "data", "test_sha256"
    assert [result[key] for key in alike] == [whole[key] for key in alike]
    origin = result["continued_from"]
    assert (origin["cell"], origin["epochs"]) == (two.signature, 2)
    assert origin["seconds"] == short["seconds"]["fit"] < result["seconds"]["fit"]


def test_a_cell_does_not_continue_a_finished_one_whose_epochs_would_differ(
    tmp_path: Path, unbroken: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    grows = "model=matrix_capsnet_tiny", "routing=em", "loss=spread", f"{SCHEDULE}=linear"
    train(make_resumable(tmp_path, *grows, "epochs=1"))
    why = "the margin of loss=spread depends on the number of epochs"
    assert find_start(make_resumable(tmp_path, *grows)) == Start(refusal=why)
    fixed = "model=cnn_small"
    short, cell = make_resumable(tmp_path, fixed, "epochs=2"), make_resumable(tmp_path, fixed)
    train(short)
    begun = Start(short.signature, 2)
    ledger = Ledger(places.resolve(cell.config["places"]).ledger)
    planned = plan.make_plan([Point("arm", "arm", 0, cell)], ledger)
    assert planned.cells[0].start == begun
    (line,) = plan.describe_starts([begun])
    assert line == "1 cell will continue from finished cells with fewer epochs"
    whole, rest = (read_estimates(ledger, planned.entries, n) for n in ({}, planned.begun))
    assert (rest.seconds(cell) or 9) < (whole.seconds(cell) or 0)
    for other in ("seed=1", "optim.optimizer.lr=0.02", "rerun=always"):
        assert find_start(make_resumable(tmp_path, fixed, other)) == Start()
    with monkeypatch.context() as patch:
        patch.setattr(code_identity, "hash_numerics", lambda _: "0" * 12)
        assert "code has changed" in find_start(cell).refusal
    threads = make_resumable(tmp_path, fixed, "trainer.threads=2")
    assert find_start(threads) == begun  # it may run on another machine
    assert "with other implementations.threads" in train(threads, shorter=begun[0])["begun_anew"]
    shutil.rmtree(find_folder(cell))
    checkpoint = find_folder(short) / "resume.ckpt"
    flip_bits(checkpoint)
    assert "digest is wrong" in train(cell, shorter=begun[0])["begun_anew"]
    assert_equal(cell, unbroken)
    shutil.rmtree(find_folder(cell))
    checkpoint.unlink()
    assert "no checkpoint was kept" in find_start(cell).refusal
    assert "was removed" in train(cell, shorter=begun[0])["begun_anew"]  # since it was planned


def flip_bits(path: Path, place: int | None = None) -> None:
    """Turn bits over: in the middle, of stored weights."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 0b01100000
    path.write_bytes(content)


def rewrite_code(path: Path) -> None:
    """As if other code had trained its epochs."""
    stored, state = open_checkpoint(path)
    state["provenance"]["code"]["numerics"] = "0" * 12
    for weight in stored["state_dict"].values():
        weight.zero_()
    torch.save(stored, path)


def take_anothers(path: Path) -> None:
    """As if the folder were another cell's."""
    other = make_resumable(path.parent / "other", "model=cnn_small", "optim.optimizer.lr=0.02")
    shutil.copy(leave_unfinished(other), path)


def open_checkpoint(path: Path) -> tuple[dict, dict]:
    """A checkpoint, and in it what its recorder has put there."""
    stored = torch.load(path, weights_only=True)
    (state,) = (one for one in stored["callbacks"].values() if "rows" in one)
    return stored, state


def leave_unfinished(cell: Cell) -> Path:
    """Run a cell that fails in its fourth epoch; its checkpoint, of the third."""

    def fail_late(row: dict) -> None:
        assert row["epoch"] < 3, "a failure, as any other"

    with pytest.raises(AssertionError, match="a failure"):
        train(cell, RunHooks(on_epoch=fail_late))
    return find_folder(cell) / "resume.ckpt"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alter", "why"),
    [
        (flip_bits, "damaged"),
        # The list of a zip file's members begins before the file does.
        (lambda path: flip_bits(path, -45), "not a checkpoint"),
        (lambda path: os.truncate(path, path.stat().st_size // 2), "not a checkpoint"),
        (lambda path: torch.save([], path), "not a checkpoint"),
        (rewrite_code, "code that has changed"),
        (take_anothers, "it belongs to cell "),
    ],
)
def test_a_checkpoint_that_cannot_be_gone_on_with_is_dropped_in_a_line(
    tmp_path: Path,
    alter: Callable[[Path], object],
    why: str,
    unbroken: Cell,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken, epochs = make_resumable(tmp_path, "model=cnn_small"), []
    path = leave_unfinished(broken)
    alter(path)
    result = train(broken, RunHooks(on_epoch=lambda row: epochs.append(row["epoch"])))

    assert epochs == list(range(EPOCHS))
    assert_equal(broken, unbroken)
    lines = capsys.readouterr().err.splitlines()
    (line,) = (line for line in lines if "starts from its first epoch" in line)
    assert str(path) in line
    assert why in line
    assert result["begun_anew"] == line


def test_a_resumed_cell_knows_what_trained_its_epochs_and_for_how_long(tmp_path: Path) -> None:
    cell = make_resumable(tmp_path, "model=cnn_small")
    path = leave_unfinished(cell)
    stored, state = open_checkpoint(path)  # without pickled objects
    assert {"state_dict", "optimizer_states", "lr_schedulers", "epoch"} <= stored.keys()
    state["provenance"]["versions"]["torch"] = "1.0"
    for row in state["rows"]:
        row["seconds"] += 1000
    torch.save(stored, path)
    seconds = train(cell)["seconds"]
    assert 2000 < seconds["fit"] < seconds["total"]
    made = json.loads((path.parent / "provenance.json").read_text())
    assert [one["versions"]["torch"] for one in made["earlier"]] == ["1.0"]
    assert made["earlier"][0]["code"] == made["code"]


def test_a_cell_is_not_gone_on_with_on_other_data_than_its_first_epochs_had(
    tmp_path: Path,
) -> None:
    cell = make_resumable(tmp_path, "model=cnn_small")
    path = leave_unfinished(cell)
    stored, state = open_checkpoint(path)
    state["digests"]["train"] = "0" * 64
    torch.save(stored, path)
    with pytest.raises(DataError, match=f"changed after the first epochs.*'train': '{'0' * 64}'"):
        train(cell)
    assert path.exists()


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
