"""Whatever is wrong is one line: input that nobody means, variables, outputs, faults of ours."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from capsweep import cli
from capsweep.cli import plan
from capsweep.ledger.ledger import Ledger

PLAN = ["plan", "ablation", "SEEDS=1"]
LONG = "x" * 5_000
AXES = "epochs=range(1,200) batch_size=range(1,200)"


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line of a command that is refused."""
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not error.startswith("error: unexpected")
    return error


def test_another_system_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    line = refusal(capsys, "ledger", "ls")
    assert line == "error: capsweep runs on Linux only, this is darwin; use WSL or Docker\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "error: capsweep: the following arguments are required: COMMAND"),
        *((f"{command} ROUTING=0", "in [1, 1000], got 0") for command in ("sweep", "report")),
        ("plan ablation DATASET=nosuch", "dataset=nosuch: no such option; "),
        ("plan SWEEP=nosuch", "SWEEP=nosuch"),
        (f"plan SEEDS={'9' * 5_000}", "must be a count of 1 to 9999"),
        ("plan LEDGER=gs://", "places.ledger=gs://: write one of s3, gs,"),
        ("plan routing.num_iters=range(1,9999)", "19,997 places with 3 seeds each are more than"),
        (f"plan {AXES}", "198,005 places with 3 seeds each are more than 20,000 cells"),
        (f"plan model.hidden={'[' * 3_000}", "is not an override"),
        ("plan STORAGE=a${seed}", "places.storage may not contain ${"),
        (f"plan STORAGE={LONG}", "is no valid name of a folder"),
        ("plan LEDGER=/dev/null", "places.ledger=/dev/null: /dev/null is not a folder"),
        ("sweep EXECUTOR=array", "EXECUTOR=array and SHARD=i/n belong together"),
        ("train hydra/launcher=basic", "the settings of Hydra itself"),
        ("train -m seed=1,2", "capsweep sweep"),
        ("train --resolve", "type --cfg job --resolve"),
        ("train --help x", "is not an override"),
        ("train model._target_=torch.nn.ReLU", "ReLU.__init__() got an unexpected"),
        ("eval attack ablation --steps 0", "must be a whole number >= 1, got 0"),
        ("eval attack ablation --eps 0", "must be above 0, such as 0.1,0.2, got 0"),
        ("data verify .", "error: index.json: no such file"),
        ("data make DATASET=smallnorb", "put the official files into a folder and type"),
        ("data make smallnorb", "it has no name; type NAME=value, such as DATASET="),
        ("data make PAIRS=few", "PAIRS=few: must be a whole number >= 1"),
        ("plan ablation METRIC=x/y", "test/reconstruction\n"),
        ("train ROUTING=3", "ROUTING is no word of train; its words are MODEL, EPOCHS, "),
        ("sweep ablation EXECUTOR=local RETRY=x", "RETRY=x: must be failed; leave"),
        ("plan overlap SWEEP=ablation", "capsweep plan takes one name"),
        # /proc is read-only to root, too, who runs the tests in CI.
        ("sweep STORAGE=/proc/capsweep", "set STORAGE="),
        ("sweep EXECUTOR=slurm", "EXECUTOR=slurm"),
        ("sweep DATASET=mnist DATA_DIR=/nowhere", "/nowhere does not exist; set DATA_DIR to the"),
    ],
    ids=lambda value: value[:60],
)
def test_what_cannot_be_meant_is_one_line(
    words: str, text: str, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text in refusal(capsys, *words.split())
    assert not (own_folder / "outputs" / "ray").exists()


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("WANDB_MODE", "WANDB_MODE: "),
        ("WANDB_BASE_URL", "WANDB_BASE_URL: "),
        ("STORAGE", "places.storage may not contain ${"),
    ],
)
def test_a_bad_variable_is_named(
    variable: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "not one ${oc.env:HOME}")
    assert said in refusal(capsys, "train", "model=cnn_small")


def test_a_fault_of_ours_is_one_line_and_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(*_: object) -> int:
        raise LookupError("nobody\nforesaw this")

    monkeypatch.setattr(plan, "run_info", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    assert cli.main(["info"]) == 70
    assert "; the traceback is in no file (No such file" in capsys.readouterr().err
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cli.main(["info"]) == 70
    (file,) = tmp_path.iterdir()
    line = f"error: unexpected LookupError: nobody foresaw this; the traceback is in {file}\n"
    assert capsys.readouterr().err == line
    assert "Traceback" in file.read_text()


@pytest.mark.parametrize(
    ("shell", "ended"),
    [
        ('"$@" > /dev/full', (74, "error: [Errno 28] No space left on device\n")),
        ('"$@" >&-', (0, "")),
    ],
)
def test_an_output_that_nobody_takes_is_no_traceback(shell: str, ended: tuple[int, str]) -> None:
    command = ["bash", "-c", shell, "bash", sys.executable, "-m", "capsweep", *PLAN]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == ended


def run_unread(*words: str) -> tuple[int, str]:
    """Exit status and standard error of a command whose reader is gone before it prints."""
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "capsweep", *words]
    process = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
    os.close(theirs)
    return process.returncode, process.stderr


@pytest.mark.parametrize(
    "words",
    [
        (*PLAN, "--json"),  # print()
        PLAN,  # rich
        ("ledger", "ls", "--help"),  # argparse
    ],
)
def test_a_command_without_a_reader_ends_in_silence(words: Sequence[str]) -> None:
    status, error = run_unread(*words)
    assert error == ""
    assert status == 141 or "--help" in words  # argparse may take the refusal itself


def test_training_outlives_its_reader(tmp_path: Path) -> None:
    assert run_unread("train", "--cfg", "job") == (0, "")  # Hydra prints
    small = ["EPOCHS=1", "SEEDS=1", "limit_batches=1", "logger=csv"]
    words = ["sweep", "ablation", "ARMS=cnn", *small, "EXECUTOR=local"]
    assert run_unread(*words, f"STORAGE={tmp_path}") == (0, "")
    assert len(Ledger(tmp_path / "ledger").list_signatures()) == 1
