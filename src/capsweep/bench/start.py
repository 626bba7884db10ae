"""How long a person waits: commands that train nothing, and the first cell of a sweep.

Each command is a process of its own, as it is typed. All of them take turns with
`python -c "import torch"`, the unit of their bars; the fastest of the rounds counts, since what is
slower was disturbed.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from capsweep.bench.measured import Measured, Report

ROUNDS = 5
PATIENCE = 120.0  # seconds within which a sweep must begin to train
UNIT = "import torch"
# The cells of `make sweep ROUTING=3`, as short as can be: what is timed is all but training.
SWEEP = ("ablation", "--routing", "3", "--epochs", "1", "limit_batches=1", "logger=csv")
HELPED = (
    *("sweep", "plan", "report", "train", "info", "eval", "ledger", "data", "bench", "doctor"),
    *("cluster", "attach", "status", "stop", "wandb"),
)
IDENTITY = """
import time
from capsweep.config import compose
config = compose.cell([]).config
started = time.perf_counter()
from capsweep.config import code_identity
code_identity.numerics(config), code_identity.package()
print(time.perf_counter() - started)
"""
NOTE = (
    f"Each is a process of its own; {ROUNDS} rounds, in which they take turns, after one that is "
    "not counted; the fastest of each. The user's cache is warm: after an installation or an edit "
    "of the code, the first plan builds each network once, which takes seconds. The first cell "
    "begins to train when its process has imported what it needs, read its data and built its "
    "network, on a Ray that the sweep starts."
)


@dataclass(frozen=True)
class Command:
    """What is typed after `python`, and its bars: in seconds, or in times `import torch`."""

    name: str
    words: tuple[str, ...]
    unit: str = "s"
    bar: float | None = None
    stretch: float | None = None


def measure(rounds: int = ROUNDS) -> Report:
    """Commands that train nothing, and the first cell of a sweep."""
    with tempfile.TemporaryDirectory() as folder:
        _run(_capsweep("sweep", *SWEEP, "--executor", "local", "--storage", folder))
        commands = list(_commands(folder))
        seconds: dict[str, list[float]] = {command.name: [] for command in commands}
        identity = []
        for _ in range(rounds + 1):
            for command in commands:
                started = time.perf_counter()
                _run(command.words)
                seconds[command.name].append(time.perf_counter() - started)
            identity.append(float(_run(("-c", IDENTITY))))
        least = {name: min(each[1:]) for name, each in seconds.items()}
        first = min(_seconds_to_first_step(Path(folder) / f"first-{n}") for n in range(2))
    measured = [
        Measured(
            command.name,
            least[command.name] / (least[UNIT] if command.unit == "x" else 1),
            command.unit,
            command.bar,
            stretch=command.stretch,
        )
        for command in commands
    ]
    measured += [
        Measured("code_identity in a worker", min(identity[1:]), "s", 0.15, stretch=0.05),
        Measured("make sweep ROUTING=3: its first cell trains after", first, "s", 9, stretch=6),
    ]
    return Report(measured, notes=[NOTE])


def _commands(storage: str) -> Iterator[Command]:
    """What takes turns. storage: of a sweep whose cells are finished."""
    there = ("--storage", storage)
    yield Command(UNIT, ("-c", "import torch"))
    yield Command("the import of a process that trains", ("-c", "import capsweep.training.run"))
    yield Command("plan ablation", _capsweep("plan", "ablation", *there), "x", 1.6, 1.3)
    nothing = "make sweep ROUTING=3, nothing to run"
    yield Command(nothing, _capsweep("sweep", *SWEEP, *there), "x", 2.0, 1.5)
    yield Command("report ablation", _capsweep("report", *SWEEP, *there), "x", 1.0, 0.7)
    yield Command("ledger ls", _capsweep("ledger", "ls", *there), "s", 0.5, 0.3)
    for name in HELPED:
        yield Command(f"{name} --help", _capsweep(name, "--help"), "s", 0.5, 0.3)


def _capsweep(*words: str) -> tuple[str, ...]:
    return ("-m", "capsweep", *words)


def _run(words: tuple[str, ...]) -> str:
    """What `python WORDS` prints. Raises CalledProcessError where it fails."""
    return subprocess.run(
        [sys.executable, *words], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def _seconds_to_first_step(storage: Path) -> float:
    """From the start of a sweep to its first training step; the sweep is ended then."""
    started = time.time()
    sweep = subprocess.Popen(
        [sys.executable, *_capsweep("sweep", *SWEEP, "--storage", str(storage))],
        stdout=subprocess.DEVNULL,
    )
    try:
        while time.time() < started + PATIENCE and sweep.poll() is None:
            for path in storage.glob("ledger/*/*/metrics.jsonl"):
                if content := path.read_text().partition("\n")[0]:
                    return path.stat().st_mtime - json.loads(content)["seconds"] - started
            time.sleep(0.01)
        raise RuntimeError(f"no cell of {' '.join(SWEEP)} began to train in {PATIENCE:g} s")
    finally:
        sweep.send_signal(signal.SIGINT)
        sweep.wait()
