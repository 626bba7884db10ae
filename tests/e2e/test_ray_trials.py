"""Jobs as trials of a real Ray Tune: shared GPUs, a bound."""

import json
import os
from collections import Counter
from pathlib import Path

import commands
import pytest

pytestmark = pytest.mark.slow

# Each driver is this and a script that defines the work of a trial. Its results are JSON lines.
DRIVER = """
import json, os, sys, time
from pathlib import Path
from job_queues import DeclaredCosts, RecordingListener
from capsweep.config import compose
from capsweep.ledger.ledger import Ledger
from capsweep.runtime.ray_start import ray
from capsweep.sweep import ray_tune
from capsweep.sweep.resources import Capacity
from capsweep.training.run import Job, Outcome
from capsweep.sweep.estimates import Limits
from capsweep.sweep.queue import JobQueue
from capsweep.tracking.content import Labels

folder, listener = sys.argv[1], RecordingListener()

def execute(*cells, capacity, limits=None, cpu=1, **options):
    jobs = [Job(cell, Labels(), cpu) for cell in cells]
    ledger, limits = Ledger(f"{folder}/ledger"), limits or Limits()
    queue = JobQueue(jobs, ledger, listener, DeclaredCosts(None), limits)
    ray_tune.execute(queue, Path(folder), cells[0].config, declared=capacity, **options)
    return queue

def show(value):
    print("json:", json.dumps(value))
"""


def run_driver(script: str, folder: Path, *words: str) -> list:
    """What a driver shows."""
    paths = [str(Path(commands.__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    program = ["-c", DRIVER + script, str(folder)]
    output = commands.read_to_end(commands.start(*words, env=environment, program=program))
    lines = [line.partition("json: ") for line in output.splitlines()]
    return [json.loads(text) for before, mark, text in lines if mark and not before]


SHARES = """
def work(job, hooks):
    if job.is_calibration:  # recorded on an 80 GiB device: batch 32 takes 20 GiB, batch 64 50
        gibibytes = 20 if job.cell.config["batch_size"] == 32 else 50
        peak = {"process": 2**30, "gpu": gibibytes * 2**30}
        return Outcome(dict(shape=job.cell.shape, hardware="declared", seconds_per_step=0.1,
            evaluation_seconds_per_image=0.0, startup_seconds=0.0, peak_memory_bytes=peak,
            utilisation=0.2, device_memory_bytes=80 * 2**30, steps=20))
    if job.cell.config["seed"] == 3 and job.gpu < 0.5:
        return Outcome(cause="OutOfMemoryError: CUDA out of memory")
    began = time.time()
    time.sleep(2)  # the work itself, long enough that cells stand beside each other
    return Outcome({"batch": job.cell.config["batch_size"], "share": job.gpu, "began": began,
                    "ended": time.time(), "device": os.environ["CUDA_VISIBLE_DEVICES"]})

cells = [compose.cell([f"batch_size={b}", f"seed={s}"]) for b in (32, 64) for s in range(4)]
execute(*cells, capacity=Capacity(cpu=8, gpu=2), work=work)
for outcome in listener.ends.values():
    show(outcome.result or {"cause": outcome.cause})
show(listener.messages)
"""


def test_cells_share_declared_gpus_by_what_was_measured(tmp_path: Path) -> None:
    *results, messages = run_driver(SHARES, tmp_path)
    assert len(results) == 8
    assert Counter((r["batch"], r["share"]) for r in results) == {
        (32, 0.3333): 3,  # three of 20 GiB and their contexts in 72 GiB
        (32, 1.0): 1,  # ran out of memory once: the next larger share is half of three, one
        (64, 1.0): 4,
    }
    assert any("trying again with a larger share" in message for message in messages)
    for cell in results:
        shares = [
            other["share"]
            for other in results
            if other["device"] == cell["device"]
            and other["began"] <= cell["began"] < other["ended"]
        ]
        assert sum(shares) <= 1.0001
        assert cell["device"] in ("0", "1")


BOUNDED = """
def work(job, hooks):
    epoch = 0
    while not hooks.on_epoch({"epoch": epoch}):
        time.sleep(0.2)  # the epoch's work
        epoch += 1
    return Outcome(paused="the bound is reached")

cells = [compose.cell([f"seed={seed}"]) for seed in range(3)]
for seconds in (10.0, 40.0, 90.0):  # a busy machine may take most of the first to start Ray
    limits = Limits(wall=seconds)
    queue = execute(*cells, capacity=Capacity(cpu=2, gpu=0), limits=limits, work=work)
    if len(listener.starts) == 2:
        break
left = listener.messages.count("the bound is reached")
show([limits.stop_reason, len(listener.starts), left, queue.count_left])
"""


def test_cells_leave_at_an_epochs_end_when_the_hours_are_over(tmp_path: Path) -> None:
    ((reached, begun, left, waiting),) = run_driver(BOUNDED, tmp_path)
    assert (reached, waiting) == ("MAX_HOURS is reached", 3)
    assert left == begun == 2
