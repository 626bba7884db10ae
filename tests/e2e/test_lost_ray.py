"""A Ray of this machine that loses a vital process ends as a whole, and soon, whoever uses it."""

import os
import subprocess
import sys
import time

import processes
import pytest

pytestmark = pytest.mark.slow

MARK = "CAPSWEEP_TEST_LOST"
# A task that runs until it is killed, and a child of it in a session of its own, as W&B's
# processes may be. Nobody waits for the 600 seconds: they are what the test must end.
WAITS = """
import subprocess, sys, time
from capsweep.ray_start import connected, ray

@ray.remote
def wait():
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    print("begun", flush=True)
    time.sleep(600)

with connected(None, cpus=1):
    ray.get(wait.remote())
"""


@pytest.mark.parametrize("sign", ["raylet/raylet", "gcs/gcs_server"])
def test_all_of_it_ends_and_work_that_waits_is_interrupted(sign: str) -> None:
    mark = f"{MARK}={os.urandom(8).hex()}"
    environment = {**os.environ, MARK: mark.partition("=")[2]}
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        processes.wait_until(lambda: _with("sleep 600", mark), 60)
        for pid in _with(sign, mark):
            processes.kill(pid)
        hit = time.monotonic()
        _, said = process.communicate(timeout=60)
        assert "the Ray of this machine is lost" in said
        assert "RayLostError" in said.splitlines()[-1]
        assert time.monotonic() - hit < 30
        assert not processes.with_variable(mark)
    finally:
        for pid in processes.with_variable(mark):
            processes.kill(pid)


def _with(sign: str, mark: str) -> list[int]:
    return [pid for pid in processes.with_variable(mark) if sign in processes.command(pid)]
