"""Real processes, ended at random times: the sweep they disturb, and how its answer is read.

The number of rounds per kind is 1, or what CAPSWEEP_ROUNDS says (`make soak`: 20); a round is a
function of its number, and is written to CAPSWEEP_SOAK_REPORT where that is set.
"""

import json
import os
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import commands
import numpy as np
import processes
import pytest
from commands import Process

SWEEP = """\
question: Does a disturbed sweep give the answer of an undisturbed one?
base: [epochs=16, limit_batches=6, batch_size=16, trainer.accelerator=cpu]
seeds: [0, 1]
baseline: cnn
arms:
  cnn: {fixed: [model=cnn_small, "model.hidden=8"]}
  capsnet:
    fixed: [model.conv.channels=8, model.primary.types=2]
    space: {routing.num_iters: [1, 3]}
table: {rows: [arm, routing.num_iters], columns: [dataset], metric: test/error}
"""
MARK = "CAPSWEEP_TEST_SWEEP"  # in the environment of all that a sweep starts


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `round_number` is run once per round."""
    if "round_number" in metafunc.fixturenames:
        rounds = int(os.environ.get("CAPSWEEP_ROUNDS", "1"))
        metafunc.parametrize("round_number", range(rounds))


Answer = tuple[str, dict[str, bytes]]  # the table, and the predictions of every cell


class Disturbed:
    """A sweep of six cells, of two to three seconds each, in processes of its own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.file, self.storage = folder / "disturbed.yaml", folder / "outputs"
        self.file.write_text(SWEEP)
        self.mark = secrets.token_hex(8)
        self.environment = {**environment, MARK: self.mark}

    def start(self, *more: str) -> Process:
        """The sweep, going on by itself: the same command, every time."""
        choices = [f"STORAGE={self.storage}", "logger=csv", "trainer.checkpoint_interval=0"]
        return commands.start("sweep", str(self.file), *choices, *more, env=self.environment)

    def run(self, *more: str, status: int = 0) -> str:
        """What the sweep prints, on the local executor, until it ends with this status."""
        return commands.read_to_end(self.start("EXECUTOR=local", *more), status)

    def wait_for_work(self, seconds: float = 180) -> None:
        """Until a cell that has not finished has written a checkpoint."""

        def has_checkpoint() -> bool:
            found = self.storage.glob("ledger/*/*/resume.ckpt")
            return any(not path.with_name("result.json").exists() for path in found)

        processes.wait_until(has_checkpoint, seconds)

    def list_owners(self) -> list[int]:
        """Processes that hold a claim, by their ids."""
        owners = []
        for path in self.storage.glob("ledger/claims/[0-9a-f]*"):
            with suppress(OSError, ValueError):
                owners.append(json.loads(path.read_text())["owner"]["pid"])
        return owners

    def find_processes(self) -> dict[int, str]:
        """All that is alive of this sweep: commands by process."""
        marked = processes.with_variable(f"{MARK}={self.mark}")
        return {pid: processes.command(pid) for pid in marked if processes.is_alive(pid)}

    def read_answer(self) -> Answer:
        """What is there now."""
        predictions = {}
        for path in sorted(self.storage.glob("ledger/*/*/predictions.npz")):
            with np.load(path, allow_pickle=False) as stored:
                predictions[path.parent.name] = stored["scores"].tobytes()
        table = self.storage / "reports" / self.file.stem / "table.md"
        return table.read_text(), predictions

    def count_finished(self) -> int:
        """Cells with a result."""
        return len(list(self.storage.glob("ledger/*/*/result.json")))


@pytest.fixture
def disturbed(tmp_path: Path, clean_environment: dict[str, str]) -> Iterator[Disturbed]:
    """A fresh sweep. What it started and a test left running is ended, by its ids."""
    sweep = Disturbed(tmp_path, clean_environment)
    yield sweep
    for pid in sweep.find_processes():
        processes.kill(pid)


@pytest.fixture(scope="session")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, clean_environment: dict[str, str]
) -> Answer:
    """The answer of the same sweep when nothing happens to it."""
    sweep = Disturbed(tmp_path_factory.mktemp("quiet"), clean_environment)
    sweep.run()
    assert sweep.count_finished() == 6
    return sweep.read_answer()


@pytest.fixture
def chance(request: pytest.FixtureRequest, round_number: int) -> random.Random:
    """What is random in a round: a function of the test and the round's number, its name."""
    return random.Random(request.node.name)


@pytest.fixture
def note(request: pytest.FixtureRequest, round_number: int) -> Iterator[dict]:
    """Facts of a round for the soak report; a round that fails is written down too."""
    facts: dict = {
        "fault": request.function.__name__.removeprefix("test_"),
        "round": round_number,
        "equal": False,
    }
    started = time.monotonic()
    yield facts
    facts["seconds"] = round(time.monotonic() - started, 1)
    if report := os.environ.get("CAPSWEEP_SOAK_REPORT"):
        with open(report, "a") as file:
            file.write(json.dumps(facts) + "\n")
