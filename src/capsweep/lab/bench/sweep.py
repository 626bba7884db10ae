"""How long users wait: for commands without training, for the first cell, and for overhead.

Each command runs as a user types it, in its own process. Commands without training are timed in
turns with `python -c "import torch"`, because some bars are multiples of the time of this import.
The time of a command is the time of its fastest round, because other programs on the machine can
only make a command slower. An extra first round fills the user's cache, and is not counted.

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
import time
from functools import partial
from pathlib import Path

from capsweep.lab.bench import BenchReport, Measurement, time_call
from capsweep.lab.bench.comparison import time_in_turns

UNIT, TRAIN = "import torch", "import capsweep.training.fit"
SHORT = "epochs=1 limit_batches=1 logger=csv"  # hardly any training
HELPED = [f"{name} --help" for name in ("sweep", "plan", "report", "train", "eval", "ledger")]
COMMANDS = {  # by command: unit and bar; s: seconds, x: multiples of the time of `import torch`
    "plan ablation": ("x", 1.6),
    f"sweep ablation {SHORT}": ("x", 2.0),
    f"report ablation {SHORT}": ("x", 1.0),
    "ledger ls": ("s", 0.5),
}
OVERHEAD = """
question: What does a cell cost?
base: [dataset=digits, batch_size=8, trainer.accelerator=cpu]
seeds: [0]
baseline: cnn
arms: {cnn: {fixed: [model=cnn_small]}}
table: {rows: [arm], columns: [dataset], metric: test/error}
"""


def measure_start(is_quick: bool = False) -> BenchReport:
    """Measure how long commands without training take, and how soon a sweep's first cell trains."""
    with tempfile.TemporaryDirectory() as folder:
        first = min(_time_first_cell(Path(folder, name)) for name in ("cold", "warm"))
        calls = {code: partial(_run_python, "-c", code) for code in (UNIT, TRAIN)}
        for typed in (*COMMANDS, *HELPED):
            calls[typed] = partial(_run_capsweep, typed, Path(folder, "warm"))
        timed = {name: partial(time_call, call) for name, call in calls.items()}
        seconds = time_in_turns(timed, 0.0, 1 if is_quick else 5)
    fastest = {name: min(each) for name, each in seconds.items()}
    units = {"s": 1.0, "x": fastest[UNIT]}
    bars = [
        Measurement(typed, fastest[typed] / units[unit], unit, bar)
        for typed, (unit, bar) in COMMANDS.items()
    ]
    what = f"--help, the slowest of {len(HELPED)} commands"
    bars.append(Measurement(what, max(fastest[typed] for typed in HELPED), "s", 0.5))
    imports = [Measurement(name, fastest[name], "s") for name in (UNIT, TRAIN)]
    what = "sweep ablation: its first cell trains after"
    return BenchReport([*imports, *bars, Measurement(what, first, "s", 9)])


def _time_first_cell(storage: Path) -> float:
    """Return the seconds from the start of a sweep to its first training step."""
    started = time.time()
    _run_capsweep(f"sweep ablation {SHORT}", storage)
    rows = {
        path: json.loads(path.read_bytes()) for path in storage.glob("ledger/*/*/metrics.jsonl")
    }
    return min(path.stat().st_mtime - row["seconds"] for path, row in rows.items()) - started


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
    _run_python("-m", "capsweep", *typed.split(), f"STORAGE={storage}")


def _run_python(*words: str) -> None:
    """Run `python WORDS` and drop its standard output.

    Raises:
        CalledProcessError: The command fails.
    """
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
