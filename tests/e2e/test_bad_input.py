"""Bad input: one line with key or file and the cure, exit status 2, before Ray starts."""

import gzip
import shutil
import sys
from pathlib import Path

import pytest

from capsweep import cli

SPLITS = ("train", "t10k")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that `capsweep ARGUMENTS` says before it exits with 2."""
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    return printed.err


def test_another_system_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    said = refused(capsys, "ledger", "ls")
    assert said == "error: capsweep runs on Linux only, this is darwin; use WSL or Docker\n"


@pytest.mark.parametrize("door", ["sweep", "plan", "report"])
@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["ablation", "--routing", "0"], ["capsnet", "routing.num_iters", ">= 1", "got 0"]),
        (["ablation", "--routing", "abc"], ["ROUTING=abc", "dynamic"]),
        (["ablation", "--seeds", "0"], ["SEEDS=0", ">= 1"]),
        (["ablation", "--dataset", "nosuch"], ["dataset=nosuch", "digits", "mnist"]),
        (["ablation", "--epochs", "none"], ["epochs", "integer"]),
        (["nosuch"], ["SWEEP=nosuch", "ablation"]),
    ],
)
def test_a_wrong_choice_names_the_variable_and_what_there_is(
    capsys: pytest.CaptureFixture[str], door: str, arguments: list[str], names: list[str]
) -> None:
    said = refused(capsys, door, *arguments)
    assert all(name in said for name in names), said


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("routing.num_iters: [1, 3],", "routing.num_itres: [1, 3],", ["did you mean", "capsnet"]),
        ("space: {", "space: {routing.num_iters: [2], ", ["routing.num_iters", "twice"]),
        ("[1, 3]", "[3, 3]", ["routing.num_iters", "twice"]),
        ("seeds: [0, 1]", "seeds: [0, 0]", ["seeds", "distinct"]),
        ("baseline: cnn", "baseline: none", ["baseline", "not an arm"]),
        ("question:", "qestion:", ["qestion", "did you mean question"]),
    ],
)
def test_a_wrong_sweep_file_names_the_file_and_the_key(
    capsys: pytest.CaptureFixture[str],
    small_sweep: Path,
    tmp_path: Path,
    old: str,
    new: str,
    names: list[str],
) -> None:
    wrong = tmp_path / "wrong.yaml"
    text = small_sweep.read_text()
    assert old in text
    wrong.write_text(text.replace(old, new))
    said = refused(capsys, "sweep", str(wrong))
    assert all(name in said for name in ["wrong.yaml", *names]), said


@pytest.mark.parametrize("door", ["sweep", "report"])
def test_a_read_only_storage_names_storage(
    capsys: pytest.CaptureFixture[str], small_sweep: Path, door: str
) -> None:
    # /proc is read-only to root, too, who runs the tests in CI.
    said = refused(capsys, door, str(small_sweep), "--storage", "/proc/capsweep")
    assert "places.storage" in said
    assert "STORAGE=" in said


def test_a_missing_data_folder_names_it_and_where_its_files_come_from(
    capsys: pytest.CaptureFixture[str], storage: Path
) -> None:
    choices = ["--dataset", "mnist", "--data-dir", "/nowhere", "--storage", str(storage)]
    said = refused(capsys, "sweep", "ablation", *choices)
    assert "/nowhere does not exist; set DATA_DIR to the folder of the files from http" in said
    assert not (storage / "ray").exists()


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_a_truncated_file_is_named(
    capsys: pytest.CaptureFixture[str],
    data_folder: Path,
    storage: Path,
    tmp_path: Path,
    name: str,
) -> None:
    folder = tmp_path / "data" / "mnist"
    shutil.copytree(data_folder / "mnist", folder)
    whole = folder / f"{name}.gz"
    (folder / name).write_bytes(gzip.decompress(whole.read_bytes())[:-100])
    whole.unlink()
    choices = ["--dataset", "mnist", "--data-dir", str(tmp_path / "data")]
    said = refused(capsys, "sweep", "ablation", *choices, "--storage", str(storage))
    assert f"{folder / name}: truncated or altered" in said
    assert "download it again" in said


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("routing.num_iters=0", ["routing.num_iters must be >= 1, got 0"]),
        ("routing.num_itres=3", ["did you mean routing.num_iters"]),
        ("+new.key=1", ["cannot be added"]),
        ("model._target_=os.system", ["model._target_", "may not be called"]),
        ("places.ledger=s3://", ["places.ledger=s3://: it names no bucket"]),
        ("places.ledger=/dev/null", ["places.ledger=/dev/null", "no folder; name another one"]),
        ("places.ledger=/proc/ledger", ["places.ledger: /proc/ledger cannot be written"]),
    ],
)
def test_train_refuses_in_one_line_too(
    capsys: pytest.CaptureFixture[str], override: str, names: list[str]
) -> None:
    said = refused(capsys, "train", override)
    assert all(name in said for name in names), said


def test_an_unknown_executor_is_named(
    capsys: pytest.CaptureFixture[str], small_sweep: Path, storage: Path
) -> None:
    choices = ["--executor", "slurm", "--storage", str(storage)]
    assert "EXECUTOR=slurm" in refused(capsys, "sweep", str(small_sweep), *choices)
