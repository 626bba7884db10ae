"""What nobody foresaw is one line and a file; variables and outputs that are no good are told."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from capsweep import cli
from capsweep.cli import info

PLAN = ["plan", "ablation", "--seeds", "1"]
ONE_CELL = ["ablation", "--arms", "cnn", "--seeds", "1", "--epochs", "1", "limit_batches=1"]


def command(words: Sequence[str], shell: str = '"$@"', **environment: str) -> tuple[int, str]:
    """The status of a command, and what it says on the standard error."""
    line = ["bash", "-c", shell, "bash", sys.executable, "-m", "capsweep", *words]
    done = subprocess.run(
        line, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    return done.returncode, done.stderr


def test_a_fault_of_ours_is_one_line_and_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(*_: object) -> int:
        raise LookupError("nobody\nforesaw this")

    monkeypatch.setattr(info, "run_info", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cli.main(["info"]) == 70
    said = capsys.readouterr().err
    (kept,) = tmp_path.iterdir()
    assert said == (
        f"error: unexpected LookupError: nobody foresaw this; the traceback is in {kept}\n"
    )
    assert "Traceback" in kept.read_text()


def test_a_full_output_is_one_line() -> None:
    status, said = command(PLAN, shell='"$@" > /dev/full')
    assert (status, said.count("\n")) == (74, 1)
    assert said == "error: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(("shell", "status"), [('"$@" >&-', 0), ('"$@" | true', 0)])
def test_an_output_that_nobody_takes_is_no_traceback(shell: str, status: int) -> None:
    assert command(PLAN, shell=shell) == (status, "")


@pytest.mark.parametrize(
    ("variable", "value"), [("WANDB_MODE", "sometimes"), ("WANDB_BASE_URL", "not a url")]
)
def test_a_bad_variable_is_named(variable: str, value: str, tmp_path: Path) -> None:
    words = ["sweep", *ONE_CELL, "--executor", "local", "--storage", str(tmp_path)]
    status, said = command(words, **{variable: value})
    assert status == 2
    assert said.startswith(f"error: {variable}: Input should be ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["hydra/launcher=basic"], "Hydra's own settings are fixed"),
        (["-m", "seed=1,2"], "use capsweep sweep"),
        (["--config-name=x"], "no such option"),
        (["--config-dir", "/nowhere"], "no such option"),
        (["--resolve"], "add that"),
        (["--help", "x"], "is not an override"),
        (["model._target_=torch.nn.ReLU"], "model._target_: ReLU.__init__() got an unexpected"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_train_answers_in_one_line_where_hydra_would_in_many(
    words: list[str], names: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    at = [] if words[0].startswith("--") else [f"places.storage={tmp_path}"]
    assert cli.main(["train", *words, *at]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert names in said
