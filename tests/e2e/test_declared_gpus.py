"""Packing on a real Ray that declares GPUs: recorded measurements decide who shares a device."""

import json
import subprocess
import sys
from collections import Counter

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys, tempfile, time
from pathlib import Path
from capsweep.sweep.executors import ray_tune
from capsweep.config import compose
from capsweep.config.cell import hash_shape
from capsweep.ledger.ledger import Ledger
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.gpu_packing import Capacity
from capsweep.sweep.queue import JobQueue
from capsweep.tracking.labels import Labels

class Heard:
    ends = {}
    def on_start(self, signature): pass
    def on_epoch(self, signature, row): pass
    def on_message(self, signature, what): print(what, file=sys.stderr)
    def on_end(self, signature, outcome): self.ends[signature] = outcome.result or outcome.cause

class Unknown:
    def seconds(self, cell): return None
    def add(self, result): pass

def work(job, hooks):
    if job.measures:  # as recorded on an 80 GiB device: batch 32 takes 20 GiB, batch 64 takes 50
        gibibytes = 20 if job.cell.config["batch_size"] == 32 else 50
        peak = {"process": 2**30, "gpu": gibibytes * 2**30}
        return Outcome(dict(shape=hash_shape(job.cell), hardware="declared", seconds_per_step=0.1,
            evaluation_seconds_per_image=0.0, startup_seconds=0.0, peak_memory_bytes=peak,
            utilisation=0.2, device_memory_bytes=80 * 2**30, steps=20))
    if job.cell.config["seed"] == 3 and job.gpu < 0.5:
        return Outcome(cause="OutOfMemoryError: CUDA out of memory")
    began = time.time()
    time.sleep(2)  # the work itself, long enough that cells stand beside each other
    return Outcome({"batch": job.cell.config["batch_size"], "share": job.gpu, "began": began,
                    "ended": time.time(), "device": os.environ["CUDA_VISIBLE_DEVICES"]})

with tempfile.TemporaryDirectory() as folder:
    cells = [compose.cell([f"batch_size={b}", f"seed={s}"]) for b in (32, 64) for s in range(4)]
    heard = Heard()
    queue = JobQueue([Job(c, Labels()) for c in cells], Ledger(folder), heard, Unknown())
    ray_tune.execute(queue, Path(folder), work=work, declared=Capacity(cpu=8, gpu=2))
print(json.dumps(list(heard.ends.values())))
"""


def test_cells_share_declared_gpus_by_what_was_measured() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=200
    )
    assert ended.returncode == 0, ended.stderr
    results = json.loads(ended.stdout.splitlines()[-1])
    assert len(results) == 8
    assert Counter((r["batch"], r["share"]) for r in results) == {
        (32, 0.3333): 3,  # three of 20 GiB and their contexts in 72 GiB
        (32, 1.0): 1,  # ran out of memory once: the next larger share is half of three, one
        (64, 1.0): 4,
    }
    assert "once more with a larger share" in ended.stderr
    for one in results:
        together = [
            other["share"]
            for other in results
            if other["device"] == one["device"] and other["began"] <= one["began"] < other["ended"]
        ]
        assert sum(together) <= 1.0001
        assert one["device"] in ("0", "1")
