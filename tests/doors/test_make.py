"""The Makefile: it documents itself, and its variables reach the command as typed."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str) -> str:
    """What make prints, without running recipes that take time."""
    command = ["make", "--no-print-directory", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def command_of(*arguments: str) -> list[str]:
    """The words of the capsweep command that `make ARGUMENTS` would run."""
    dry = make("--dry-run", "--assume-old=.venv/.ready", *arguments)
    line = next(line for line in dry.splitlines() if "/capsweep " in line)
    return shlex.split(line)[1:]


@pytest.mark.parametrize("target", ["setup", "sweep", "plan", "report", "train", "test", "check"])
def test_help_lists_every_door(target: str) -> None:
    assert f"  {target} " in make("help")


def test_make_alone_is_help() -> None:
    assert make() == make("help")
    assert "ROUTING=1,3" in make()


def test_variables_become_flags() -> None:
    choices = ["ROUTING=3", "SEEDS=0", "DATASET=mnist", "DATA_DIR=../shared/data", "EPOCHS=2"]
    assert command_of("sweep", *choices) == [
        *["sweep", "ablation", "--routing", "3", "--dataset", "mnist", "--seeds", "0"],
        *["--epochs", "2", "--data-dir", "../shared/data"],
    ]


def test_odd_paths_survive_the_shell() -> None:
    odd = "/tmp/it's a; place"
    assert command_of("sweep", f"STORAGE={odd}")[-1] == odd


def test_overrides_come_last() -> None:
    words = command_of("plan", "SWEEP=ablation", "ARGS=seed.x=1 optim.optimizer.lr=0.1")
    assert words == ["plan", "ablation", "seed.x=1", "optim.optimizer.lr=0.1"]
