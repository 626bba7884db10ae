"""Ctrl-C: state kept, exit within 10 s, non-zero, no process left; the same command goes on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import processes
import pytest
from processes import listen_to_ctrl_c

pytestmark = pytest.mark.slow
LONG = ["epochs=2000", "limit_batches=1", "trainer.checkpoint_interval=0", "logger=csv"]


def begun(storage: Path) -> bool:
    """Whether a cell has written an epoch and a checkpoint."""
    return any(storage.glob("ledger/*/*/resume.ckpt"))


@contextmanager
def killed_in_the_end(process: subprocess.Popen[str]) -> Iterator[None]:
    """What a test that fails leaves running would disturb all that follow."""
    with process:
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("executor", ["ray", "local"])
def test_ctrl_c_keeps_the_state_and_the_same_command_carries_on(
    small_sweep: Path, tmp_path: Path, clean_environment: dict[str, str], executor: str
) -> None:
    command = [sys.executable, "-m", "capsweep", "sweep", str(small_sweep), "--routing", "3"]
    command += ["--seeds", "1", "--executor", executor, "--storage", str(tmp_path)]
    process = subprocess.Popen(
        [*command, *LONG],
        env=clean_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=listen_to_ctrl_c,
    )
    with killed_in_the_end(process):
        processes.wait_until(lambda: begun(tmp_path), 200)
        _interrupt(process, tmp_path)


def _interrupt(process: subprocess.Popen[str], storage: Path) -> None:
    """Ctrl-C ends a sweep within ten seconds, with nothing of it left but its checkpoint."""
    family = [process.pid, *processes.descendants(process.pid)]
    sent = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    said, _ = process.communicate(timeout=60)
    assert time.monotonic() - sent <= 10
    assert process.returncode == 130, said
    assert "the same command goes on" in said
    assert "Traceback" not in said
    processes.wait_until(lambda: not any(processes.is_alive(pid) for pid in family), 20)
    assert begun(storage)
    assert not any(storage.glob("ledger/*/*/result.json"))


def test_an_interrupted_cell_goes_on_from_its_checkpoint(
    small_sweep: Path, tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "capsweep", "train", "model=cnn_small", "epochs=60"]
    command += ["limit_batches=1", "trainer.checkpoint_interval=0", "logger=csv"]
    command += [f"places.storage={tmp_path}", "trainer.accelerator=cpu"]
    first = subprocess.Popen(
        command,
        env=clean_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen_to_ctrl_c,
    )
    with killed_in_the_end(first):
        processes.wait_until(lambda: begun(tmp_path), 90)
        first.send_signal(signal.SIGINT)
        _, said = first.communicate(timeout=30)
    assert first.returncode == 130, said
    again = subprocess.run(command, env=clean_environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "epoch 0:" not in again.stdout
    assert "epoch 59:" in again.stdout
    metrics = next(tmp_path.glob("ledger/*/*/metrics.jsonl")).read_text()
    assert metrics.count('"epoch"') == 60
