"""A run killed at any epoch and resumed ends bitwise equal to an unbroken one."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import shard_folders
import torch
from trained_cells import assert_equal, find_folder, kill_at, train

from capsweep.config import compose
from capsweep.config.cell import Cell
from capsweep.errors import DataError
from capsweep.shards.reader import declare_data_set
from capsweep.training import RunHooks

EPOCHS = 5


def make_resumable(storage: Path, *overrides: str) -> Cell:
    """Five epochs with dropout or a decoder, a checkpoint after each."""
    small = [f"places.storage={storage}", "logger=csv", f"epochs={EPOCHS}", "limit_batches=3"]
    fixed = ["batch_size=16", "trainer.accelerator=cpu", "trainer.checkpoint_interval=0"]
    chosen = {text.split("=", 1)[0] for text in overrides}
    rest = [text for text in (*small, *fixed) if text.split("=", 1)[0] not in chosen]
    return compose.cell([*rest, *overrides])


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    """A cell that nothing has disturbed."""
    cell = make_resumable(tmp_path_factory.mktemp("unbroken"), "model=cnn_small")
    train(cell)
    return cell


def slow_case(*overrides: str) -> Any:
    """A network that `make test` leaves to `make test-all`."""
    return pytest.param(overrides, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "model",
    [
        ("model.conv.channels=8", "model.primary.types=2"),
        slow_case("model=cnn_small"),
        slow_case("model.conv.channels=8", "model.primary.types=2", "precision=bf16-mixed"),
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
    assert_resumed_is_unbroken(tmp_path, model, killed_after=(0, 2, 3))


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
    small = ["model.conv.channels=8", "model.primary.types=2", "batch_size=128"]
    assert_resumed_is_unbroken(tmp_path, (*data, *small), killed_after=(1, 3))


def assert_resumed_is_unbroken(
    tmp_path: Path, model: tuple[str, ...], killed_after: tuple[int, ...]
) -> None:
    unbroken, broken = (make_resumable(tmp_path / name, *model) for name in ("unbroken", "broken"))
    train(unbroken)
    for last in killed_after:
        kill_at(broken, "row", last)
    train(broken)
    assert_equal(broken, unbroken)


def flip_bits(path: Path) -> None:
    """Turn bits of stored weights over."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0b01100000
    path.write_bytes(content)


def damage_end(path: Path) -> None:
    """Have the list of a zip file's members begin before the file does."""
    content = bytearray(path.read_bytes())
    content[-45] ^= 0b01000000
    path.write_bytes(content)


def rewrite_code(path: Path) -> None:
    """As if other code had trained its epochs."""
    stored, state = open_checkpoint(path)
    state["provenance"]["code"]["numerics"] = "0" * 12
    for weight in stored["state_dict"].values():
        weight.zero_()
    torch.save(stored, path)


def open_checkpoint(path: Path) -> tuple[dict, dict]:
    """A checkpoint, and in it what its recorder has put there."""
    stored = torch.load(path, weights_only=True)
    (state,) = (one for one in stored["callbacks"].values() if "rows" in one)
    return stored, state


def leave_unfinished(cell: Cell) -> Path:
    """Run a cell that fails in its fourth epoch; its checkpoint, of the third."""

    def fail_late(row: dict) -> None:
        if row["epoch"] == 3:
            raise RuntimeError("a failure, as any other")

    with pytest.raises(RuntimeError, match="a failure"):
        train(cell, RunHooks(on_epoch=fail_late))
    return find_folder(cell) / "resume.ckpt"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alter", "why"),
    [
        (flip_bits, "damaged"),
        (damage_end, "no checkpoint"),
        (lambda path: os.truncate(path, path.stat().st_size // 2), "no checkpoint"),
        (lambda path: torch.save([], path), "no checkpoint"),
        (rewrite_code, "other code"),
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
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "begins anew" in line)
    assert str(path) in line
    assert why in line
    assert result["begun_anew"] == line


def test_the_checkpoint_of_another_cell_is_dropped_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("model=cnn_small", "epochs=4", "limit_batches=1")
    other = make_resumable(tmp_path / "other", *small, "optim.optimizer.lr=0.02")
    cell, epochs = make_resumable(tmp_path, *small), []
    path = find_folder(cell) / "resume.ckpt"
    path.parent.mkdir(parents=True)
    shutil.copy(leave_unfinished(other), path)
    result = train(cell, RunHooks(on_epoch=lambda row: epochs.append(row["epoch"])))
    assert epochs == list(range(4))
    assert f"{path} is dropped" in result["begun_anew"]
    assert f"it is of cell {other.signature}" in capsys.readouterr().err


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
    assert not path.exists()


def test_a_cell_is_not_gone_on_with_on_other_data_than_its_first_epochs_had(
    tmp_path: Path,
) -> None:
    cell = make_resumable(tmp_path, "model=cnn_small")
    path = leave_unfinished(cell)
    stored, state = open_checkpoint(path)
    state["digests"]["train"] = "0" * 64
    torch.save(stored, path)
    with pytest.raises(DataError, match=f"altered since the first epochs.*'train': '{'0' * 64}'"):
        train(cell)
    assert path.exists()
