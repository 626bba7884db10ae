"""A run killed at any epoch and resumed ends bitwise equal to an unbroken one."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shard_folders
import torch
import warm_processes

from capsweep.config import code_identity, compose, places
from capsweep.config.cell import Cell
from capsweep.errors import CodeChangedError
from capsweep.ledger.ledger import folder_of
from capsweep.shards.reader import declare_data_set
from capsweep.sweep.job import Job, run_job
from capsweep.tracking.labels import Labels
from capsweep.training import ddp
from capsweep.training.checkpoint import seal
from capsweep.training.run import run
from capsweep.training.run_hooks import RunHooks

EPOCHS = 5

# Runs a cell, and ends its own process with SIGKILL once an epoch is written.
KILLED = """
import os, signal, sys
from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.training.run import run
from capsweep.training.run_hooks import RunHooks
cell, last = Cell.from_json(sys.argv[1]), int(sys.argv[2])
def kill(row):
    if row["epoch"] == last:
        os.kill(os.getpid(), signal.SIGKILL)
run(cell, places.resolve(cell.config["places"]), RunHooks(on_epoch=kill))
"""


def resumable(storage: Path, *overrides: str) -> Cell:
    """Five epochs with dropout or a decoder, a checkpoint after each."""
    small = [f"places.storage={storage}", "logger=csv", f"epochs={EPOCHS}", "limit_batches=3"]
    fixed = ["batch_size=16", "trainer.accelerator=cpu", "trainer.checkpoint_interval=0"]
    chosen = {text.split("=", 1)[0] for text in overrides}
    rest = [text for text in (*small, *fixed) if text.split("=", 1)[0] not in chosen]
    return compose.cell([*rest, *overrides])


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    """A cell that nothing has disturbed."""
    cell = resumable(tmp_path_factory.mktemp("unbroken"), "model=cnn_small")
    run(cell, places.resolve(cell.config["places"]))
    return cell


def outputs(cell: Cell) -> tuple[dict, dict, list[dict]]:
    """Weights, predictions and metrics of a finished cell, without its durations."""
    path = Path(places.resolve(cell.config["places"]).ledger) / folder_of(cell.signature)
    weights = torch.load(path / "weights.ckpt", weights_only=True)
    with np.load(path / "predictions.npz", allow_pickle=False) as stored:
        predictions = dict(stored)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return weights, predictions, [{k: v for k, v in r.items() if k != "seconds"} for r in rows]


def slow(*overrides: str) -> Any:
    """A network that `make test` leaves to `make test-all`."""
    return pytest.param(overrides, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "model",
    [
        ("model.conv.channels=8", "model.primary.types=2"),
        slow("model=cnn_small"),
        slow("model.conv.channels=8", "model.primary.types=2", "precision=bf16-mixed"),
        # A margin that grows with training, and steps that warm up.
        slow(
            "model=matrix_capsnet",
            "model.conv.channels=4",
            "model.primary.types=2",
            "model.capsules.types=[2,2]",
            "routing.num_iters=2",
            "optim.decayed=weights",
            "optim.clip_norm=1.0",
            "optim.schedule.warmup=7",
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
    unbroken = resumable(tmp_path / "unbroken", *model)
    run(unbroken, places.resolve(unbroken.config["places"]))
    broken = resumable(tmp_path / "broken", *model)
    for last in killed_after:
        kill_after(broken, last)
    run(broken, places.resolve(broken.config["places"]))
    assert_equal(broken, unbroken)


def assert_equal(broken: Cell, unbroken: Cell) -> None:
    """Weights, predictions and rows of two cells, to the last bit."""
    weights, predictions, rows = outputs(unbroken)
    resumed_weights, resumed_predictions, resumed_rows = outputs(broken)
    assert all(torch.equal(weights[name], resumed_weights[name]) for name in weights)
    assert all(np.array_equal(predictions[k], resumed_predictions[k]) for k in predictions)
    assert resumed_rows == rows
    assert [row["epoch"] for row in rows] == list(range(EPOCHS))


def kill_after(cell: Cell, last: int) -> None:
    """Run a cell in a process that does not outlive the epoch `last`."""
    process = warm_processes.run(["-c", KILLED, cell.to_json(), str(last)])
    assert process.returncode == -signal.SIGKILL


def flip(path: Path) -> None:
    """Turn bits of stored weights over."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0b01100000
    path.write_bytes(content)


def truncate(path: Path) -> None:
    """Leave half of it."""
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    """Leave nothing."""
    path.write_bytes(b"")


def replace(path: Path) -> None:
    """Put something in its place that has a digest, and is no checkpoint."""
    path.write_bytes(b"something else")
    seal(path)


def rewrite(path: Path) -> None:
    """As if other code had trained its epochs."""
    stored, state = opened(path)
    state["provenance"]["code"]["numerics"] = "0" * 12
    for weight in stored["state_dict"].values():
        weight.zero_()
    torch.save(stored, path)
    seal(path)


def opened(path: Path) -> tuple[dict, dict]:
    """A checkpoint, and in it what its recorder has put there."""
    stored = torch.load(path, weights_only=True)
    (state,) = (one for one in stored["callbacks"].values() if "rows" in one)
    return stored, state


def leave_unfinished(cell: Cell) -> Path:
    """Run a cell that fails in its fourth epoch; its checkpoint, of the third."""

    def fail(row: dict) -> None:
        if row["epoch"] == 3:
            raise RuntimeError("a failure, as any other")

    here = places.resolve(cell.config["places"])
    with pytest.raises(RuntimeError, match="a failure"):
        run(cell, here, RunHooks(on_epoch=fail))
    return Path(here.ledger) / folder_of(cell.signature) / "resume.ckpt"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alter", "why"),
    [
        (flip, "damaged"),
        (truncate, "damaged"),
        (empty, "damaged"),
        (replace, "no checkpoint"),
        (rewrite, "other code"),
    ],
)
def test_a_checkpoint_that_cannot_be_gone_on_with_is_dropped_in_a_line(
    tmp_path: Path,
    alter: Callable[[Path], None],
    why: str,
    unbroken: Cell,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken, told = resumable(tmp_path, "model=cnn_small"), []
    path = leave_unfinished(broken)
    alter(path)
    hear = RunHooks(on_epoch=lambda row: told.append(row["epoch"]))
    result = run(broken, places.resolve(broken.config["places"]), hear)

    assert told == list(range(EPOCHS))
    assert_equal(broken, unbroken)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "begins anew" in line)
    assert str(path) in line
    assert why in line
    assert result["begun_anew"] == line


def test_a_worker_or_a_device_with_other_code_than_who_asks_for_the_cell_trains_nothing(
    tmp_path: Path,
) -> None:
    cell = resumable(tmp_path, "model=cnn_small")
    outcome = run_job(Job(cell, Labels(), code="0" * 12), RunHooks())
    assert outcome.left
    assert outcome.left.startswith("the code in ")
    assert not (tmp_path / "ledger").exists()
    here = places.resolve(cell.config["places"])
    shared = ddp.SharedCell(cell, here, tmp_path, None, 2, "0" * 12, tmp_path / "meeting", False)
    with pytest.raises(CodeChangedError, match="start the command again"):
        ddp.take_part(0, shared, print)


def test_a_cell_whose_code_is_edited_while_it_trains_ends_and_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, edited = resumable(tmp_path, "model=cnn_small"), tmp_path / "objective.py"
    known, name = code_identity._read_modules(), "capsweep.training.objective"
    edited.write_bytes(known[name].content)
    monkeypatch.setitem(known, name, known[name]._replace(path=edited))  # type: ignore[arg-type]
    # As if it were imported after the cell had begun.
    monkeypatch.setattr(code_identity, "_unchanged", code_identity._unchanged - {name})

    def edit(row: dict) -> None:
        code_identity._unchanged.discard(name)
        if row["epoch"] == 2:
            edited.write_text("EXTRA = 1\n")

    here = places.resolve(cell.config["places"])
    with pytest.raises(CodeChangedError, match=str(edited)):
        run(cell, here, RunHooks(on_epoch=edit))
    folder = Path(here.ledger) / folder_of(cell.signature)
    assert not (folder / "error.txt").exists()
    assert len(opened(folder / "resume.ckpt")[1]["rows"]) == 2


def test_provenance_says_what_else_trained_the_epochs_of_a_resumed_cell(tmp_path: Path) -> None:
    cell = resumable(tmp_path, "model=cnn_small")
    path = leave_unfinished(cell)
    stored, state = opened(path)
    state["provenance"]["versions"]["torch"] = "1.0"
    torch.save(stored, path)
    seal(path)
    run(cell, places.resolve(cell.config["places"]))
    made = json.loads((path.parent / "provenance.json").read_text())
    assert [one["versions"]["torch"] for one in made["earlier"]] == ["1.0"]
    assert made["earlier"][0]["code"] == made["code"]


def test_the_time_of_a_resumed_cell_is_that_of_all_its_epochs(tmp_path: Path) -> None:
    cell = resumable(tmp_path, "model=cnn_small")
    kill_after(cell, 2)
    found = places.resolve(cell.config["places"])
    path = Path(found.ledger) / folder_of(cell.signature) / "resume.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    (rows,) = (state["rows"] for state in checkpoint["callbacks"].values() if "rows" in state)
    for row in rows:
        row["seconds"] += 1000
    torch.save(checkpoint, path)
    seal(path)
    seconds = run(cell, found)["seconds"]
    assert 2000 < seconds["fit"] < seconds["total"]


def test_the_resume_checkpoint_holds_no_pickled_objects_and_goes_when_the_cell_is_finished(
    tmp_path: Path, small_cell: Callable[..., Cell]
) -> None:
    cell = resumable(tmp_path, "model=cnn_small")
    here = places.resolve(cell.config["places"])
    checkpoint = Path(here.ledger) / folder_of(cell.signature) / "resume.ckpt"
    seen: list[set[str]] = []

    def look(row: dict) -> None:
        if row["epoch"] == EPOCHS - 1:
            seen.append(set(torch.load(checkpoint, weights_only=True)))

    run(cell, here, RunHooks(on_epoch=look))
    assert {"state_dict", "optimizer_states", "lr_schedulers", "epoch"} <= seen[0]
    assert not checkpoint.exists()
