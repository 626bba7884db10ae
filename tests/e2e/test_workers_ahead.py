"""Workers that Ray starts ahead of the first trial import meanwhile, and trials run in them."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys, tempfile
from pathlib import Path
from capsweep.config import compose
from capsweep.ledger.ledger import Ledger
from capsweep.ray_start import ray
from capsweep.sweep.executors import ray_tune
from capsweep.sweep.job import Job, Outcome
from capsweep.sweep.gpu_packing import Capacity
from capsweep.sweep.queue import JobQueue
from capsweep.tracking.labels import Labels

class Listener:
    def on_start(self, signature): pass
    def on_epoch(self, signature, row): pass
    def on_message(self, signature, what): print(what, file=sys.stderr)
    def on_end(self, signature, outcome): print(json.dumps(outcome.result), flush=True)

class Costs:
    def seconds(self, cell): return None
    def add(self, result): pass

def work(job, hooks):
    return Outcome({
        "has_imported": "capsweep.training.run" in sys.modules,
        "own_environment": dict(ray.get_runtime_context().runtime_env).get("env_vars"),
    })

ray_tune.run_job = work  # what a sweep's workers run
cells = int(sys.argv[1])
with tempfile.TemporaryDirectory() as folder:
    jobs = [Job(compose.cell([f"seed={seed}"]), Labels()) for seed in range(cells)]
    queue = JobQueue(jobs, Ledger(folder), Listener(), Costs())
    ray_tune.execute(queue, Path(folder), work=work, declared=Capacity(cpu=2, gpu=0))
"""


@pytest.mark.parametrize("cells", [1, 2])
def test_a_worker_imports_ahead_where_there_is_a_cell_for_each(cells: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(cells)], capture_output=True, text=True, timeout=200
    )
    assert ended.returncode == 0, ended.stderr
    results = [json.loads(line) for line in ended.stdout.splitlines()]
    # Trials with an environment of their own would be run by other processes than those.
    expected = {"has_imported": cells == 2, "own_environment": None}
    assert results == [expected] * cells
