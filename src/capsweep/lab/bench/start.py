"""How long a person waits: commands that train nothing, and the first cell of a sweep.

Each command is a process of its own, as it is typed. All of them take turns with
`python -c "import torch"`, the unit of their bars; the fastest of the rounds counts, since what is
slower was disturbed. The first round does not count: the user's cache is warm after it.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from capsweep.lab.bench.machine import time_call
from capsweep.lab.bench.results import BenchReport, Measured

ROUNDS = 5
QUICK = {"start": {"rounds": 1}}
PATIENCE = 120.0  # seconds within which a sweep must begin to train
UNIT, TRAINING = "import torch", "import capsweep.training.run"
# The cells of `make sweep ROUTING=3`, as short as can be: what is timed is all but training.
SWEEP = ("ablation", "ROUTING=3", "EPOCHS=1", "limit_batches=1", "logger=csv")
HELPED = (
    *("sweep", "plan", "report", "train", "info", "eval", "ledger", "data", "bench", "doctor"),
    *("attach", "status", "stop", "wandb"),
)


def measure_start(rounds: int = ROUNDS) -> BenchReport:
    """Commands that train nothing, and the first cell of a sweep."""
    with tempfile.TemporaryDirectory() as folder:
        _run_python("-m", "capsweep", "sweep", *SWEEP, "EXECUTOR=local", f"STORAGE={folder}")
        commands = _list_commands(folder)
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds + 1):
            for name, (words, *_) in commands.items():
                seconds[name].append(time_call(lambda words=words: _run_python(*words)))
        fastest = {name: min(each[1:]) for name, each in seconds.items()}
        first = min(_time_first_step(Path(folder) / f"first-{n}") for n in range(2))
    units = {"s": 1.0, "x": fastest[UNIT]}
    slowest = max(fastest[name] for name in HELPED)
    measured = [
        Measured(name, fastest[name] / units[unit], unit, bar)
        for name, (_, unit, bar) in commands.items()
        if name not in HELPED
    ]
    measured += [
        Measured(f"--help, the slowest of {len(HELPED)} commands", slowest, "s", 0.5),
        Measured("make sweep ROUTING=3: its first cell trains after", first, "s", 9),
    ]
    return BenchReport(measured)


def _list_commands(storage: str) -> dict[str, tuple[tuple[str, ...], str, float | None]]:
    """What takes turns: what is typed after `python`, unit (seconds, or times `import torch`), and
    bar. storage: of a sweep whose cells are finished.
    """
    place = (f"STORAGE={storage}",)
    commands = {
        "plan ablation": (("plan", "ablation", *place), "x", 1.6),
        "make sweep ROUTING=3, nothing to run": (("sweep", *SWEEP, *place), "x", 2.0),
        "report ablation": (("report", *SWEEP, *place), "x", 1.0),
        "ledger ls": (("ledger", "ls", *place), "s", 0.5),
        **{name: ((name, "--help"), "s", None) for name in HELPED},
    }
    return {
        UNIT: (("-c", "import torch"), "s", None),
        "the import of a process that trains": (("-c", TRAINING), "s", None),
        **{name: (("-m", "capsweep", *words), *bar) for name, (words, *bar) in commands.items()},
    }


def _run_python(*words: str) -> None:
    """Run `python WORDS`, without what it prints. Raises CalledProcessError where it fails."""
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)


def _time_first_step(storage: Path) -> float:
    """From the start of a sweep to its first training step; the sweep is ended then."""
    started = time.time()
    sweep = subprocess.Popen(
        [sys.executable, "-m", "capsweep", "sweep", *SWEEP, f"STORAGE={storage}"],
        stdout=subprocess.DEVNULL,
    )
    try:
        while time.time() < started + PATIENCE and sweep.poll() is None:
            for path in storage.glob("ledger/*/*/metrics.jsonl"):
                if content := path.read_text(encoding="utf-8").partition("\n")[0]:
                    return path.stat().st_mtime - json.loads(content)["seconds"] - started
            time.sleep(0.01)
        raise RuntimeError(f"no cell of {' '.join(SWEEP)} began to train in {PATIENCE:g} s")
    finally:
        sweep.send_signal(signal.SIGINT)
        sweep.wait()
