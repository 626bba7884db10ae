"""Cells reach W&B once, whatever happens on the way. The server is a local one; see its module."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tracked_cells
from wandb_cloud import Cloud, Run
from wandb_server import KEY, WandbServer

from capsweep import cli
from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.tracking import child, content
from capsweep.tracking import sync as syncs
from capsweep.training.run import run as run_cell

pytestmark = pytest.mark.slow

COMMAND = "import sys; from capsweep.cli import main; sys.exit(main())"


def sync(storage: Path, *more: str) -> int:
    return cli.main(["wandb", "sync", "--storage", str(storage), *more])


def steps(run: Run) -> list[int]:
    return [row["_step"] for row in run.rows]


def test_a_cell_is_a_run_and_is_sent_once(
    storage: Path, server: WandbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    signatures = [tracked_cells.write(storage, number) for number in range(3)]
    tracked_cells.draw(tracked_cells.folder(storage, 0), "reconstructions.png", shade=3)
    running = set(
        child.list_descendants(os.getpid())
    )  # such as multiprocessing's own, of other tests
    assert sync(storage, "--jobs", "2") == 0
    assert "3 cells uploaded" in capsys.readouterr().out
    run = server.cloud.run(signatures[1])
    assert (steps(run), run.state, run.project) == ([0, 1, 2], "finished", tracked_cells.PROJECT)
    assert [row["epoch"] for row in run.rows] == [0, 1, 2]
    assert run.config == {"seed": 1, "routing.num_iters": 3}
    assert (run.summary["test/error"], run.summary["params"]) == (0.25, 1000)
    labels = ("groupName", "jobType", "displayName", "notes", "tags")
    told = ["ablation", "capsnet", "capsnet · T=3 · seed 1", "Does it?", ["ablation"]]
    assert [run.fields[name] for name in labels] == told

    asked = len(server.requests)
    assert sync(storage) == 0
    assert len(server.requests) == asked  # the marks know
    before = [list(run.streams["wandb-history.jsonl"]) for run in server.cloud.runs.values()]
    for mark in (storage / "wandb" / "synced").iterdir():
        mark.unlink()
    assert sync(storage, "--json") == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sorted(answer["uploaded"]) == sorted(signatures)
    assert before == [run.streams["wandb-history.jsonl"] for run in server.cloud.runs.values()]
    assert images(server.cloud.run(signatures[0])) == {"reconstructions": 1}
    assert set(child.list_descendants(os.getpid())) <= running
    assert not (storage / "wandb" / "uploading").exists()
    assert KEY.encode() not in b"".join(f.read_bytes() for f in storage.rglob("*") if f.is_file())


def images(run: Run) -> dict[str, int]:
    """How often each picture was put there."""
    sent = [name for name in run.uploads.elements() if name.startswith("media/images/pictures/")]
    names = [Path(name).name.partition("_")[0] for name in sent]
    return {name: names.count(name) for name in names}


def test_of_an_uploaded_cell_only_what_is_new_goes_up(storage: Path, server: WandbServer) -> None:
    signature = tracked_cells.write(storage, 0)
    place = tracked_cells.folder(storage, 0)
    tracked_cells.draw(place, "reconstructions.png", shade=3)
    tracked_cells.predict(place, mistakes=2)
    assert sync(storage) == 0
    tracked_cells.draw(place, "couplings.png", shade=4)
    assert sync(storage) == 0
    run = server.cloud.run(signature)
    assert len(server.cloud.artifacts) == 1  # the table of confusions, once
    assert run.summary["confusion_table"]["nrows"] == 4
    assert images(run) == {"reconstructions": 1, "couplings": 1}
    assert [row["epoch"] for row in run.rows] == [0, 1, 2, 2, 2]
    assert len(set(steps(run))) == 5
    tracked_cells.draw(place, "couplings.png", shade=5)  # drawn anew
    tracked_cells.predict(place, mistakes=3)
    assert sync(storage) == 0
    assert len(server.cloud.artifacts) == 2
    assert images(server.cloud.run(signature)) == {"reconstructions": 1, "couplings": 2}


def test_a_cell_that_was_online_has_nothing_twice(
    small_cell: Callable[..., Cell], server: WandbServer
) -> None:
    cell = small_cell("logger=wandb", "logger.mode=online", "logger.max_seconds=60")
    here = places.resolve(cell.config["places"])
    assert run_cell(cell, here)["tracking_fault"] is None
    before = list(server.cloud.run(cell.signature).streams.get("wandb-history.jsonl", []))
    content.mark_file(here.storage, cell.signature).unlink(missing_ok=True)
    assert sync(here.storage) == 0
    run = server.cloud.run(cell.signature)
    assert [row["epoch"] for row in run.rows if "train/loss" in row] == [0, 1]
    assert sum("confusion_table" in row for row in run.rows) == 1
    assert run.state == "finished"
    assert run.streams["wandb-history.jsonl"] == before


def test_a_cell_that_failed_and_was_retried_is_one_run_with_one_curve(
    storage: Path, server: WandbServer
) -> None:
    signature, place = tracked_cells.write(storage, 0), tracked_cells.folder(storage, 0)
    folders = [storage / "wandb" / f"offline-run-2026112{day}_000000-{signature}" for day in (0, 1)]
    for folder in folders:  # of two attempts, with steps from 0 each
        folder.mkdir(parents=True)
        (folder / f"run-{signature}.wandb").write_bytes(b":W&B\x00\x00\x00")
    tracked_cells.fail(place, "RuntimeError: out of memory")
    assert sync(storage) == 0
    assert (server.cloud.run(signature).state, steps(server.cloud.run(signature))) == (
        "failed",
        [0, 1, 2],
    )
    tracked_cells.write_rows(place, epochs=5)
    tracked_cells.finish(place, epochs=5)
    assert sync(storage) == 0
    run = server.cloud.run(signature)
    assert (run.state, steps(run)) == ("finished", [0, 1, 2, 3, 4])
    assert run.summary["train/loss"] == 0.2
    # W&B's own command believes that they are uploaded, and they are all there.
    own = [sys.executable, "-m", "wandb", "sync", *map(str, folders)]
    said = subprocess.run(own, capture_output=True, text=True, check=True)
    assert "Skipped 2 synced run(s)" in said.stdout + said.stderr
    assert all((folder / f"run-{signature}.wandb").exists() for folder in folders)


def test_a_sync_that_was_killed_goes_on_with_every_row_once(
    storage: Path, server: WandbServer
) -> None:
    signatures = [tracked_cells.write(storage, number, epochs=4) for number in range(3)]
    server.mode, server.delay = "slow", 0.05
    arguments = ["wandb", "sync", "--storage", str(storage), "--jobs", "3"]
    killed = subprocess.Popen([sys.executable, "-c", COMMAND, *arguments])

    def some_rows(cloud: Cloud) -> bool:
        return sum(len(run.rows) for run in list(cloud.runs.values())) >= 1

    assert server.wait_for(some_rows)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    server.mode = "fine"
    assert sync(storage, "--jobs", "3") == 0
    for signature in signatures:
        assert steps(server.cloud.run(signature)) == [0, 1, 2, 3]


def test_answers_that_are_lost_are_asked_for_again(storage: Path, server: WandbServer) -> None:
    signature = tracked_cells.write(storage, 0)
    server.later(3, "broken")
    server.later(4, "fine")
    assert sync(storage) == 0
    assert steps(server.cloud.run(signature)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("mode", "cure"),
    [
        ("refuse", "refuses the login; run `wandb login --relogin`"),
        ("hang", "does not answer as W&B does (it took longer than 3 s)"),
        ("broken", "does not answer as W&B does"),
    ],
)
def test_a_server_that_is_no_use_costs_one_line_and_seconds(
    storage: Path,
    server: WandbServer,
    capsys: pytest.CaptureFixture[str],
    mode: str,
    cure: str,
) -> None:
    for number in range(20):
        tracked_cells.write(storage, number)
    server.mode = mode
    began = time.monotonic()
    assert sync(storage) == 2
    assert time.monotonic() - began < 20  # 5 on an idle machine; cell by cell it were 60
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "20 cells wait" in said.err
    assert cure in said.err
    assert KEY not in said.err + said.out


def test_a_server_that_falls_silent_stops_the_rest(
    storage: Path, server: WandbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):
        tracked_cells.write(storage, number)
    server.later(16, "hang")
    began = time.monotonic()
    assert sync(storage, "--jobs", "2", "--timeout", "2.5") == 1
    assert time.monotonic() - began < 25  # a cell's time and a question, and not 4 cells'
    said = capsys.readouterr().out
    assert "not tried" in said
    assert "it took longer than 2.5 s" in said
    assert "is not sent twice" in said


def test_what_the_server_lost_is_no_success(
    storage: Path, server: WandbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    signature = tracked_cells.write(storage, 0)
    server.loses = "file_stream"
    assert sync(storage, "--timeout", "6") == 1
    assert "the server does not show epochs after -1" in capsys.readouterr().out
    assert not (storage / "wandb" / "synced" / f"{signature}.json").exists()


def test_two_at_once_do_not_send_the_same(
    storage: Path,
    server: WandbServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tracked_cells.write(storage, 0)
    monkeypatch.setattr(syncs, "LOCK_SECONDS", 0.0)
    lock = storage / "wandb" / "sync.lock"
    lock.parent.mkdir()
    with lock.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert sync(storage) == 2
    assert "another sync is at work" in capsys.readouterr().err
    assert server.requests == []


def test_a_fault_that_names_the_key_does_not(
    storage: Path,
    server: WandbServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    signature = tracked_cells.write(storage, 0)
    telling = tmp_path / "telling"
    telling.mkdir()
    # Taken for W&B's client where it reads what the cell has: `check` does not.
    (telling / "sitecustomize.py").write_text(
        "import os, numpy\n"
        "def tell(*_, **__): raise ValueError(os.environ['WANDB_API_KEY'])\n"
        "numpy.load = tell\n"
    )
    tracked_cells.predict(tracked_cells.folder(storage, 0), mistakes=1)
    monkeypatch.setenv("PYTHONPATH", f"{telling}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert sync(storage, "--json") == 1
    said = capsys.readouterr()
    (failed,) = json.loads(said.out)["failed"].items()
    assert failed[0] == signature
    assert "(key)" in failed[1]
    assert KEY not in failed[1]
    assert KEY not in said.err


def test_a_cell_whose_files_are_damaged_does_not_keep_the_others_back(
    storage: Path, server: WandbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged, whole = (tracked_cells.write(storage, number) for number in range(2))
    (tracked_cells.folder(storage, 0) / "predictions.npz").write_bytes(b"PK\x03\x04 cut short")
    assert sync(storage, "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["uploaded"], list(answer["failed"])) == ([whole], [damaged])
    assert "zip" in answer["failed"][damaged].lower()
