"""How long a person waits: commands that train nothing, plans, the first cell of a sweep, and what
a sweep costs beside training.

Each command is a process of its own, as it is typed. Those that train nothing take turns with
`python -c "import torch"`, the unit of their bars; the fastest of the rounds counts, since what is
slower was disturbed. The first round does not count: the user's cache is warm after it. Overhead is
the wall time of a sweep less the seconds that its cells were inside their epochs, shared out among
the slots: so the program's start, composition, claims, checkpoints, tests and Ray count.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import yaml

from capsweep.lab.bench import BenchReport, Measured, time_call
from capsweep.lab.bench.comparison import time_in_turns

ROUNDS, CELLS = 5, 40
QUICK = {"start": {"rounds": 1}, "sweep": {"cells": 1, "seeds": 1}}
PATIENCE = 120.0  # seconds within which a sweep must begin to train
UNIT, HELP = "import torch", "--help of {}"
SHORT = ("epochs=1", "limit_batches=1", "logger=csv")  # what is timed is all but training
HELPED = ("sweep", "plan", "report", "train", "eval", "ledger")
SMALL = "model=cnn_small dataset=digits batch_size=8 trainer.accelerator=cpu resources.gpu=0"


def measure_start(rounds: int = ROUNDS) -> BenchReport:
    """Return how long commands that train nothing take, and the first cell of a sweep."""
    with tempfile.TemporaryDirectory() as folder:
        where = (f"STORAGE={folder}",)
        _run_capsweep("sweep", "ablation", *SHORT, *where, "EXECUTOR=local")
        commands = {  # what is typed; unit: seconds, or times `import torch`; bar
            "plan ablation": (("plan", "ablation", *where), "x", 1.6),
            "sweep ablation, nothing to run": (("sweep", "ablation", *SHORT, *where), "x", 2.0),
            "report ablation": (("report", "ablation", *SHORT, *where), "x", 1.0),
            "ledger ls": (("ledger", "ls", *where), "s", 0.5),
            **{HELP.format(name): ((name, "--help"), "s", 0.5) for name in HELPED},
        }
        calls = {
            UNIT: partial(time_call, partial(_run_python, "-c", UNIT)),
            "train": partial(time_call, partial(_run_python, "-c", "import capsweep.training.fit")),
        }
        for name, (words, _, _) in commands.items():
            calls[name] = partial(time_call, partial(_run_capsweep, *words))
        seconds = time_in_turns(calls, 0.0, rounds)
        first = min(_time_first_step(Path(folder) / f"first-{n}") for n in range(2))
    fastest = {name: min(each) for name, each in seconds.items()}
    units = {"s": 1.0, "x": fastest[UNIT]}
    return BenchReport(
        [
            Measured(UNIT, fastest[UNIT], "s"),
            Measured("the import of a process that trains", fastest["train"], "s"),
            *(
                Measured(name, fastest[name] / units[unit], unit, bar)
                for name, (_, unit, bar) in commands.items()
            ),
            Measured("sweep ablation: its first cell trains after", first, "s", 9),
        ]
    )


def measure_sweep(cells: int = CELLS, seeds: int = 1000) -> BenchReport:
    """Return the time of a plan, and the overhead of a cell by the local executor and by Ray."""
    with tempfile.TemporaryDirectory() as folder:
        words = ("plan", "ablation", f"SEEDS={seeds}", f"STORAGE={folder}")
        planned = time_call(partial(_run_capsweep, *words))
    plan = Measured(f"plan ablation, {seeds:,} seeds", planned, "s", 10)
    return BenchReport([plan, *(_measure_overhead(cells, name) for name in ("local", "ray"))])


def _measure_overhead(cells: int, executor: str) -> Measured:
    what = f"overhead of a cell of one step, {executor}"
    if executor == "ray" and importlib.util.find_spec("ray") is None:
        return Measured(what, None, "s", skipped="Ray is not installed")
    arm = {"fixed": SMALL.split()}
    table = {"rows": ["arm"], "columns": ["dataset"], "metric": "test/error"}
    content = {"question": "What does a cell cost?", "baseline": "cnn", "arms": {"cnn": arm}}
    content |= {"base": list(SHORT), "seeds": list(range(cells)), "table": table}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "overhead.yaml"
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        words = ("sweep", str(file), f"STORAGE={folder}", f"EXECUTOR={executor}")
        seconds = time_call(partial(_run_capsweep, *words))
        results = [json.loads(p.read_bytes()) for p in Path(folder).glob("ledger/*/*/result.json")]
    trained = sum(result["seconds"]["fit"] for result in results)
    slots = len(os.sched_getaffinity(0)) if executor == "ray" else 1
    return Measured(what, (seconds - trained / slots) / cells, "s", 1.0)


def _run_capsweep(*words: str) -> None:
    _run_python("-m", "capsweep", *words)


def _run_python(*words: str) -> None:
    """Run `python WORDS`, without what it prints. Raises CalledProcessError where it fails."""
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)


def _time_first_step(storage: Path) -> float:
    """Return the seconds from the start of a sweep to its first training step; it is ended then."""
    started = time.time()
    sweep = subprocess.Popen(
        [sys.executable, "-m", "capsweep", "sweep", "ablation", *SHORT, f"STORAGE={storage}"],
        stdout=subprocess.DEVNULL,
    )
    try:
        while time.time() < started + PATIENCE and sweep.poll() is None:
            for path in storage.glob("ledger/*/*/metrics.jsonl"):
                if content := path.read_text(encoding="utf-8").partition("\n")[0]:
                    return path.stat().st_mtime - json.loads(content)["seconds"] - started
            time.sleep(0.01)
        raise RuntimeError(f"no cell of ablation began to train in {PATIENCE:g} s")
    finally:
        sweep.send_signal(signal.SIGINT)
        sweep.wait()
