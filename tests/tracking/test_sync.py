"""`capsweep wandb sync`: cells reach W&B once, whatever happens on the way."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import processes
import pytest
import tracked_cells
from wandb_server import KEY, Run, WandbServer

from capsweep import cli
from capsweep.ledger import lease
from capsweep.tracking import content, upload

slow = pytest.mark.slow

Capture = pytest.CaptureFixture[str]


def sync(storage: Path, *more: str) -> int:
    return cli.main(["wandb", "sync", f"STORAGE={storage}", *more])


def steps(run: Run) -> list[int]:
    return [row["_step"] for row in run.rows]


@slow
def test_a_cell_is_a_run_and_only_what_is_new_goes_up_again(
    storage: Path, server: WandbServer, capsys: Capture
) -> None:
    signature, place = tracked_cells.write(storage, 1), tracked_cells.find_folder(storage, 1)
    tracked_cells.draw_picture(place, "reconstructions.png", shade=3)
    tracked_cells.write_predictions(place, mistakes=2)
    assert sync(storage) == 0
    run = server.run(signature)
    assert (run.state, run.project) == ("finished", tracked_cells.PROJECT)
    assert run.config == {"seed": 1, "routing.num_iters": 3}
    assert (run.summary["test/error"], run.summary["confusion_table"]["nrows"]) == (0.25, 4)
    names = ("groupName", "jobType", "displayName", "notes", "tags")
    labels = ["ablation", "capsnet", "capsnet · T=3 · seed 1", "Does it?", ["ablation"]]
    assert [run.fields[name] for name in names] == labels

    count = len(server.requests)
    assert sync(storage) == 0
    assert len(server.requests) == count  # the mark knows
    row = {"row.other": "em · epochs=3"}  # of a sweep that found the cell finished
    content.write_columns(storage, {signature: content.Labels(columns=row)})
    assert sync(storage) == 0
    assert server.run(signature).config == run.config | row
    content.locate_mark(storage, signature).unlink()
    for number, shade in enumerate((4, 5), start=1):  # another picture, then drawn anew
        tracked_cells.draw_picture(place, "couplings.png", shade)
        assert sync(storage, "--json") == 0
        answer = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert answer["uploaded"] == [signature]
        uploads = server.run(signature).uploads
        for name, times in (("reconstructions", 1), ("couplings", number)):
            assert sum(uploads[path] for path in uploads if f"pictures/{name}_" in path) == times
    assert len(server.artifacts) == 1  # the confusion matrix, once
    epochs = [row["epoch"] for row in server.run(signature).rows]
    assert epochs == [0, 1, 2, 2, 2, 2]
    assert KEY.encode() not in b"".join(f.read_bytes() for f in storage.rglob("*") if f.is_file())


@slow
def test_a_cell_that_failed_and_was_retried_is_one_run_with_one_curve_of_epochs_and_one_of_points(
    storage: Path, server: WandbServer
) -> None:
    signature = tracked_cells.write(storage, 0, points=True)
    place = tracked_cells.find_folder(storage, 0)
    tracked_cells.fail_cell(place, "RuntimeError: out of memory")
    assert sync(storage) == 0
    run = server.run(signature)
    assert (run.state, steps(run)) == ("failed", [*range(5, 31, 5)])
    tracked_cells.write_rows(place, epochs=4, points=True)
    tracked_cells.write_predictions(place, mistakes=2)
    tracked_cells.finish_cell(place, epochs=4)
    assert sync(storage) == 0
    run = server.run(signature)
    assert (run.state, steps(run)) == ("finished", [*range(5, 41, 5), 41])
    assert run.summary["train/loss"] == 0.25
    assert all(row["train/loss_step"] == 1 / row["step"] for row in run.rows[:-1])
    # At the end of an epoch both share a row; no other has an epoch, which would be its place.
    assert [row.get("epoch") for row in run.rows] == [None, 0, None, 1, None, 2, None, 3, 3]
    assert "confusion_table" in run.rows[-1]


@slow
def test_a_sync_that_was_killed_goes_on_with_every_row_once(
    storage: Path, server: WandbServer
) -> None:
    signatures = [tracked_cells.write(storage, number, epochs=4) for number in range(3)]
    server.mode, server.delay = "slow", 0.05
    command = [sys.executable, "-m", "capsweep", "wandb", "sync", f"STORAGE={storage}"]
    killed = subprocess.Popen([*command, "--jobs", "3"])

    processes.wait_until(lambda: any(run.rows for run in list(server.runs.values())), seconds=30)
    uploaders = processes.trackers(killed.pid)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert len(uploaders) == 3
    assert all(processes.has_ended(pid, seconds=60) for pid in uploaders)
    server.mode = "fine"
    assert sync(storage, "--jobs", "3") == 0
    for signature in signatures:
        assert steps(server.run(signature)) == [10, 20, 30, 40]


@slow
@pytest.mark.parametrize(
    ("mode", "fault"), [("refuse", "AuthenticationError"), ("hang", "did not answer in time")]
)
def test_a_server_that_is_no_use_is_asked_once_and_costs_one_line(
    storage: Path,
    server: WandbServer,
    capsys: Capture,
    asked: list[tuple[str, float]],
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    fault: str,
) -> None:
    if mode == "refuse":  # an answer, which a busy machine may give late
        monkeypatch.setattr(upload, "CHECK_SECONDS", 60.0)
    for number in range(20):
        tracked_cells.write(storage, number)
    server.mode = mode
    assert sync(storage) == 2
    assert [do for do, _ in asked] == ["start", "check"]
    (line,) = capsys.readouterr().err.splitlines()
    assert all(text in line for text in ("20 cells not uploaded", fault, "`wandb login --relogin`"))


@slow
def test_a_server_that_falls_silent_stops_the_rest(
    storage: Path, server: WandbServer, capsys: Capture, asked: list[tuple[str, float]]
) -> None:
    for number in range(4):
        tracked_cells.write(storage, number)
    server.switch_later(14, "hang")
    assert sync(storage, "--jobs", "2", "--timeout", "8") == 1
    assert [do for do, _ in asked].count("upload") < 4
    output = capsys.readouterr().out
    for text in ("not tried", "did not answer in time", "type the same command again to continue"):
        assert text in output


@slow
def test_what_the_server_lost_is_no_success(
    storage: Path, server: WandbServer, capsys: Capture
) -> None:
    signature = tracked_cells.write(storage, 0)
    server.loses = "file_stream"
    assert sync(storage, "--timeout", "20") == 1
    assert "sent, but the server has -1 of 30 steps" in capsys.readouterr().out
    assert not content.locate_mark(storage, signature).exists()


def test_what_need_not_be_sent_or_cannot_be_is_said_without_a_request(
    storage: Path, capsys: Capture
) -> None:
    tracked_cells.write(storage, 0, project=None, mode="none")
    assert sync(storage) == 0
    assert "no cell of this ledger was tracked with W&B" in capsys.readouterr().out
    online = tracked_cells.write(storage, 1, mode="online")  # sends its rows itself
    (tracked_cells.find_folder(storage, 1) / "result.json").unlink()
    with lease.take_lease(storage / "ledger", online):
        assert sync(storage) == 0
    assert "1 cell still running" in capsys.readouterr().out
    tracked_cells.write(storage, 2)
    tracked_cells.find_folder(storage, 1).rename(storage / "gone")
    assert sync(storage) == 2
    assert "1 cell not uploaded: http" in capsys.readouterr().err
    with (storage / "wandb" / "sync.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert sync(storage) == 2
    assert "another sync is running" in capsys.readouterr().err
