"""A cell that is tracked: what its W&B run has, online and offline."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
from offline_runs import list_epochs, read_runs
from trained_cells import kill_at
from wandb_server import WandbServer

from capsweep.config.cell import Cell
from capsweep.ledger.ledger import Ledger
from capsweep.tracking import content, tracker
from capsweep.tracking.tracker import WandbProcess

pytestmark = pytest.mark.slow

Train = Callable[..., dict[str, Any]]
OFFLINE, ONLINE = "logger.mode=offline", "logger.mode=online"
CONFUSION, SHEET = "confusion_table", "pictures/worst-examples"


# What an agent, a notebook or a job of W&B leaves, SageMaker's too.
FOREIGN = {
    **dict.fromkeys(("RUN_ID", "SWEEP_ID", "RUN_GROUP", "JOB_TYPE", "NAME", "NOTES"), "foreign"),
    **{"TAGS": "foreign", "RESUME": "must", "PROJECT": "a/b", "MODE": "disabled"},
    **{"CONFIG": '{"foreign": 1}', "LAUNCH": "true", "NOTEBOOK_NAME": "foreign.ipynb"},
    "SERVICE": "3-1-unix-/nobody",
}


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which each cell is a run of its own nevertheless."""
    for name, value in FOREIGN.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("SM_TRAINING_ENV", "{}")
    monkeypatch.setenv("TRAINING_JOB_NAME", "foreign")


def keys_of(rows: list[dict[str, Any]]) -> set[str]:
    """Keys of rows, without what W&B adds within them."""
    return {key.partition(".")[0] for row in rows for key in row}


@pytest.mark.usefixtures("foreign")
def test_an_offline_run_has_all_that_there_is(train: Train, storage: Path) -> None:
    result = train(OFFLINE)
    assert result["tracking_fault"] is None
    (run,) = read_runs(storage).values()
    names = ("run_group", "job_type", "name", "notes", "tags")
    labels = ["ablation", "capsnet", "capsnet · T=3 · seed 0", "Does it?", ["ablation", "digits"]]
    assert [run[name] for name in names] == labels
    assert run["config"]["routing.num_iters"] == 3
    assert run["config"]["row.ablation"] == "capsnet · routing.num_iters=3"
    assert "foreign" not in str({**run, "rows": None})
    provenance = Ledger(storage / "ledger").read_provenance(result["signature"])
    assert run["command"] == run["config"]["command"] == provenance["command"]
    for key in ("numerics", "commit", "dirty"):
        assert run["config"].get(f"code.{key}") == provenance["code"].get(key)
    assert content.read_content(Ledger(storage / "ledger"), result["signature"]).run["config"] == {
        key: value for key, value in run["config"].items() if key != "_wandb"
    }
    assert (list_epochs(run), run["exit_code"]) == ([0, 1], 0)
    expected = result["metrics"] | {"params": result["parameters"], "gpu_hours": 0.0}
    assert {key: run["summary"][key] for key in expected} == expected
    assert {CONFUSION, SHEET} <= keys_of(run["rows"])


@pytest.mark.usefixtures("foreign")
def test_online_runs_have_all_that_there_is_and_are_marked(
    train: Train, storage: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", f"{server.environment['WANDB_API_KEY']}\n")
    results = [train(ONLINE, f"seed={seed}") for seed in (0, 1)]
    assert set(server.runs) == {("capsweep", result["signature"]) for result in results}
    for result in results:
        assert result["tracking_fault"] is None
        run = server.run(result["signature"])
        assert [row["epoch"] for row in run.rows if "train/loss" in row] == [0, 1]
        assert {CONFUSION, SHEET} <= keys_of(run.rows)
        assert run.summary["test/error"] == pytest.approx(result["metrics"]["test/error"])
        assert run.exit_code == 0
        cell = content.read_content(Ledger(storage / "ledger"), result["signature"])
        assert content.is_synced(storage, cell, server.url)
        assert str(result["tracking_url"]).endswith(f"/runs/{result['signature']}")


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are; its path is short, as those of sockets must be."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_cells_share_a_process_and_its_temporary_folder_goes_with_it(
    train: Train, idle: list[WandbProcess], temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The variable names a W&B process of somebody else, which is not asked.
    monkeypatch.setenv("WANDB_SERVICE", f"3-1-unix-{temporary}/nobody")
    assert train(OFFLINE, "epochs=1")["tracking_fault"] is None
    assert train(OFFLINE, "epochs=1", "seed=1")["tracking_fault"] is None
    assert len(processes.trackers(os.getpid())) == len(idle) == 1
    assert len(list(temporary.glob("capsweep-wandb-*"))) == 1
    idle.pop().kill()
    assert list(temporary.glob("*wandb*")) == []
    monkeypatch.setattr(tracker, "MOST_RUNS", 1)
    assert train(OFFLINE, "epochs=1", "seed=2")["tracking_fault"] is None
    assert idle == []
    assert train("logger=csv", "epochs=1")["tracking_fault"] is None
    assert processes.trackers(os.getpid()) == []


@pytest.mark.parametrize("mode", [OFFLINE, ONLINE, "logger=tensorboard"])
def test_a_cell_that_was_cut_short_is_one_run_with_one_curve(
    mode: str, train: Train, storage: Path, server: WandbServer
) -> None:
    def cut(row: dict[str, Any]) -> None:
        if row["epoch"] == 1:
            raise RuntimeError("cut short")

    overrides = (mode, "epochs=3", "trainer.checkpoint_interval=0")
    with pytest.raises(RuntimeError, match="cut short"):
        train(*overrides, on_epoch=cut)
    result = train(*overrides)
    assert result["tracking_fault"] is None
    if mode == ONLINE:
        run = server.run(result["signature"])
        assert run.sessions == 2
        assert [row["epoch"] for row in run.rows if "train/loss" in row] == [0, 1, 2]
        assert [row["step"] for row in run.rows if "train/loss_step" in row] == [1, 2, 3, 4, 5, 6]
    elif mode == OFFLINE:
        (run,) = read_runs(storage).values()
        rows = [row for row in run["rows"] if "train/loss" in row]
        steps = {row["_step"]: row["epoch"] for row in rows}
        assert steps == {2: 0, 4: 1, 6: 2}  # what `wandb sync` goes by
    else:
        (file,) = storage.glob("tensorboard/ablation/capsnet · T=3 · seed 0 · */events.*")
        # In an event, the byte 0x15 is between a tag and its value.
        for tag, values in {"train/loss": 3, "train/loss_step": 6, "test/error": 1}.items():
            assert file.read_bytes().count(f"{tag}\x15".encode()) == values


def test_a_trainer_that_is_killed_leaves_all_its_rows_and_no_process(
    small_cell: Callable[..., Cell], storage: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_IN", str(temporary))
    patient = ("logger=wandb", OFFLINE, "logger.max_seconds=60")
    kill_at(small_cell(*patient, "epochs=4", "trainer.checkpoint_interval=0"), "row", 2)
    processes.wait_until(lambda: not processes.with_variable(f"TEST_IN={temporary}"), seconds=60)
    assert list(temporary.glob("capsweep-wandb-*")) == []
    (run,) = read_runs(storage).values()
    assert list_epochs(run) == [0, 1, 2]
    assert run["exit_code"] != 0
