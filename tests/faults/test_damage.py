"""Damage that is not a kill: a full disk, a result cut in half, two drivers at once, NaN, too
little memory, a clock set back."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SMALL_DISK = "mount -t tmpfs -o size=600k tmpfs {folder} && exec {command}"


def can_mount(folder: Path) -> bool:
    """Whether this user may mount a small disk, in a namespace of its own."""
    script = f"mount -t tmpfs -o size=64k tmpfs {folder}"
    return (
        subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True).returncode == 0
    )


def test_a_full_disk_while_writing_a_result(disturbed, tmp_path: Path) -> None:
    storage = disturbed.storage
    storage.mkdir(parents=True)
    if not can_mount(storage):
        pytest.skip("may not mount a small disk here (needs root)")
    command = " ".join(disturbed.command("--executor", "local", "--seeds", "1"))
    # The disk exists in the namespace of that process alone: what it holds is copied out.
    script = SMALL_DISK.format(folder=storage, command=command).replace("exec ", "")
    script += f"; status=$?; cp -r {storage}/. {tmp_path}/seen; exit $status"
    full = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        env=disturbed.environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    said = full.stdout + full.stderr
    assert full.returncode == 1, said
    assert "No space left on device" in said
    assert "Traceback" not in said
    results = list((tmp_path / "seen").glob("ledger/*/*/result.json"))
    assert all(json.loads(path.read_text())["metrics"] for path in results), "a torn result"
    leftovers = [p for p in (tmp_path / "seen").glob("ledger/*/*/.*.tmp")]
    assert leftovers == []
    again = disturbed.run("--executor", "local", "--seeds", "1")  # on a disk with room
    assert again.returncode == 0, again.stdout


def test_a_result_cut_in_half_is_made_again(disturbed, undisturbed) -> None:
    assert disturbed.run("--executor", "local").returncode == 0
    path = sorted(disturbed.storage.glob("ledger/*/*/result.json"))[0]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    again = disturbed.run("--executor", "local")
    assert again.returncode == 0, again.stdout
    assert "5 done, 0 missing, 1 failed" in again.stdout
    assert disturbed.answer() == undisturbed


def test_two_drivers_at_once_run_every_cell_once(disturbed, undisturbed) -> None:
    drivers = [disturbed.start("--executor", "local") for _ in range(2)]
    said = [driver.communicate(timeout=240)[0] for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], said
    trained = [
        line for text in said for line in text.splitlines() if "] " in line or "s)  [" in line
    ]
    assert disturbed.finished() == 6
    assert disturbed.answer() == undisturbed
    assert any("is being run by process" in text for text in said), trained
    assert not list(disturbed.storage.glob("ledger/claims/*"))


def test_a_loss_that_turns_nan_is_told_and_not_tried_again(disturbed) -> None:
    diverge = ["optim.optimizer.lr=1.0e+30", "--seeds", "1", "--executor", "local"]
    first = disturbed.run(*diverge)
    assert first.returncode == 1
    assert "NonFiniteLossError: the loss was not finite at step" in first.stdout
    second = disturbed.run(*diverge)
    assert second.returncode == 1
    assert "cells failed before, in a way that the same code repeats" in second.stdout
    assert "NonFiniteLossError" in second.stdout, "the table still says why"
    third = disturbed.run(*diverge, "--retry", "failed")
    assert "FAILED: NonFiniteLossError" in third.stdout


def test_a_cell_that_exceeds_memory_has_failed_for_that(disturbed) -> None:
    file = disturbed.file.with_name("huge.yaml")
    huge = "seeds: [0]"
    text = disturbed.file.read_text().replace("seeds: [0, 1]", huge)
    file.write_text(text.replace('"model.hidden=8"', '"model.hidden=100000000"'))
    command = disturbed.command()
    command[command.index(str(disturbed.file))] = str(file)
    ended = subprocess.run(
        command, env=disturbed.environment, capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 1, ended.stdout
    assert "1 of 3 cells failed" in ended.stdout
    listed = subprocess.run(
        [
            *(sys.executable, "-m", "capsweep", "ledger", "failures", str(file)),
            *("--storage", str(disturbed.storage), "logger=csv", "trainer.checkpoint_interval=0"),
        ],
        env=disturbed.environment,
        capture_output=True,
        text=True,
    )
    assert "out of memory: 1 cells" in listed.stdout, listed.stderr
    assert "model.hidden=100000000" in listed.stdout


BACKWARDS = """
import sys, time
begun, real = time.time(), time.time
time.time = lambda: begun - 3600 - (real() - begun)   # an hour back, and running backwards
from capsweep.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_clock_set_back_changes_no_duration(disturbed, undisturbed) -> None:
    arguments = disturbed.command("--executor", "local")[3:]
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", BACKWARDS, *arguments],
        env=disturbed.environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert disturbed.answer() == undisturbed
    results = [json.loads(p.read_text()) for p in disturbed.storage.glob("ledger/*/*/result.json")]
    assert all(0 < result["seconds"]["fit"] < result["seconds"]["total"] for result in results)
    assert sum(result["seconds"]["total"] for result in results) < time.monotonic() - started
