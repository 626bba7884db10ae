"""Bad input: one line with key or file and the cure, exit status 2, before Ray starts."""

import gzip
import shutil
import sys
from pathlib import Path

import pytest

from capsweep import cli


def read_refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that `capsweep ARGUMENTS` prints before it exits with 2, beside what a sweep
    says that it begins.
    """
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert all(line.endswith(" ...") for line in printed.out.splitlines())
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    return printed.err


def test_another_system_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    line = read_refusal(capsys, "ledger", "ls")
    assert line == "error: capsweep runs on Linux only, this is darwin; use WSL or Docker\n"


@pytest.mark.parametrize("command", ["sweep", "plan", "report"])
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["ablation", "ROUTING=0"], ["capsnet", "routing.num_iters", "in [1, 1000]", "got 0"]),
        (["ablation", "DATASET=nosuch"], ["dataset=nosuch", "digits", "mnist"]),
        (["nosuch"], ["SWEEP=nosuch", "ablation"]),
    ],
)
def test_a_wrong_choice_names_the_variable_and_the_choices(
    capsys: pytest.CaptureFixture[str], command: str, words: list[str], names: list[str]
) -> None:
    line = read_refusal(capsys, command, *words)
    assert all(name in line for name in names), line


@pytest.mark.parametrize(
    ("words", "names"),
    [
        # /proc is read-only to root, too, who runs the tests in CI.
        (["STORAGE=/proc/capsweep"], ["places.storage", "STORAGE="]),
        (["EXECUTOR=slurm"], ["EXECUTOR=slurm"]),
        (
            ["DATASET=mnist", "DATA_DIR=/nowhere"],
            ["/nowhere does not exist; set DATA_DIR to the folder of the files from http"],
        ),
    ],
)
def test_a_sweep_that_cannot_run_here_is_refused(
    capsys: pytest.CaptureFixture[str], storage: Path, words: list[str], names: list[str]
) -> None:
    place = [] if words[0].startswith("STORAGE=") else [f"STORAGE={storage}"]
    line = read_refusal(capsys, "sweep", "ablation", *place, *words)
    assert all(name in line for name in names), line
    assert not (storage / "ray").exists()


def test_a_truncated_file_is_named(
    capsys: pytest.CaptureFixture[str], data_folder: Path, storage: Path, tmp_path: Path
) -> None:
    folder, name = tmp_path / "data" / "mnist", "t10k-labels-idx1-ubyte"
    shutil.copytree(data_folder / "mnist", folder)
    packed = folder / f"{name}.gz"
    (folder / name).write_bytes(gzip.decompress(packed.read_bytes())[:-100])
    packed.unlink()
    choices = ["DATASET=mnist", f"DATA_DIR={tmp_path / 'data'}"]
    line = read_refusal(capsys, "sweep", "ablation", *choices, f"STORAGE={storage}")
    assert f"{folder / name}: truncated or altered" in line
    assert "download it again" in line
