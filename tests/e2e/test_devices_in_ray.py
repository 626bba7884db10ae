"""A cell on two devices, as a trial of a real Ray Tune, whose worker starts their processes."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys, tempfile
from pathlib import Path
from capsweep.sweep.executors import ray_tune
from capsweep.config import compose
from capsweep.ledger.ledger import Ledger
from capsweep.sweep.job import Job
from capsweep.sweep.gpu_packing import Capacity
from capsweep.sweep.queue import JobQueue
from capsweep.tracking.labels import Labels
class Heard:
    ends, rows = {}, []
    def on_start(self, signature): pass
    def on_epoch(self, signature, row): self.rows.append(row["epoch"])
    def on_message(self, signature, what): print(what, file=sys.stderr)
    def on_end(self, signature, outcome): self.ends[signature] = outcome.result or outcome.cause
class Unknown:
    def seconds(self, cell): return None
    def add(self, result): pass
with tempfile.TemporaryDirectory() as folder:
    small = "epochs=2 batch_size=10 dataset.validation=1400 logger=csv model.conv.channels=8"
    two = "model.primary.types=2 trainer.accelerator=cpu trainer.devices=2 resources.gpu=0"
    cell = compose.cell([*small.split(), *two.split(), f"places.storage={folder}"])
    heard = Heard()
    queue = JobQueue([Job(cell, Labels(), cpu=2)], Ledger(folder), heard, Unknown())
    ray_tune.execute(queue, Path(folder), declared=Capacity(cpu=2, gpu=0))
    (result,) = heard.ends.values()
    print(json.dumps({"rows": heard.rows, "result": result}))
"""


def test_a_trial_trains_one_cell_on_two_devices() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=200
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["rows"] == [0, 1]
    assert told["result"]["devices"] == 2
    assert told["result"]["hardware"].startswith("2 x ")
