"""How long users wait for a plan, and what a cell of a sweep costs besides its training.

Each command runs as a user types it, in its own process.

The overhead of a cell is (t - c / n) / k. Here t is the wall time of a sweep of k cells on n slots,
and c is the total time that the cells spent inside epochs. So the overhead contains the start of
the program, composition, claims, checkpoints, tests and Ray.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from capsweep.lab.bench import BenchReport, Measurement, time_call

SHORT = "epochs=1 limit_batches=1 logger=csv"  # hardly any training
OVERHEAD = """
question: What does a cell cost?
base: [dataset=digits, batch_size=8, trainer.accelerator=cpu]
seeds: [0]
baseline: cnn
arms: {cnn: {fixed: [model=cnn_small]}}
table: {rows: [arm], columns: [dataset], metric: test/error}
"""


def measure_sweep(is_quick: bool = False) -> BenchReport:
    """Measure the time of a plan, and the overhead of a cell with each executor.

    The executors are the local one and, if Ray is installed, Ray.
    """
    seeds, cells = (1, 1) if is_quick else (1000, 40)
    with tempfile.TemporaryDirectory() as folder:
        plan = partial(_run_capsweep, f"plan ablation SEEDS={seeds}", Path(folder))
        measured = [Measurement(f"plan ablation, {seeds:,} seeds", time_call(plan), "s", 10)]
    for executor in ("local", "ray") if importlib.util.find_spec("ray") else ("local",):
        what = f"overhead of a cell, {executor}"
        measured.append(Measurement(what, _measure_overhead(cells, executor), "s", 1.0))
    return BenchReport(measured)


def _measure_overhead(cells: int, executor: str) -> float:
    """Run a sweep of cells with one step each; return the overhead of a cell, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "overhead.yaml")
        file.write_text(OVERHEAD, encoding="utf-8")
        typed = f"sweep {file} SEEDS={cells} EXECUTOR={executor} {SHORT} resources.gpu=0"
        seconds = time_call(partial(_run_capsweep, typed, Path(folder)))
        results = [json.loads(p.read_bytes()) for p in Path(folder).glob("ledger/*/*/result.json")]
    trained = sum(result["seconds"]["fit"] for result in results)
    slots = len(os.sched_getaffinity(0)) if executor == "ray" else 1
    return (seconds - trained / slots) / cells


def _run_capsweep(typed: str, storage: Path) -> None:
    """Run `capsweep TYPED` and drop its standard output.

    Raises:
        CalledProcessError: The command fails.
    """
    words = [sys.executable, "-m", "capsweep", *typed.split(), f"STORAGE={storage}"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
