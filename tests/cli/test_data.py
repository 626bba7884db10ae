"""`capsweep data`: make and verify as a person meets them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import shard_folders

from capsweep import cli
from capsweep.shards import manifest
from capsweep.shards.manifest import INDEX

Capture = pytest.CaptureFixture[str]
NAME = "train-00001.h5"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of the training split and one of test. To be read only."""
    folder = tmp_path_factory.mktemp("whole") / "pairs"
    shard_folders.make(folder)
    return folder


def run_data(*arguments: object) -> int:
    return cli.main(["data", *map(str, arguments)])


def test_make_in_a_process_of_its_own(tmp_path: Path) -> None:
    words = ["data", "make", "dataset.source=digits", "PAIRS=1", "EXECUTOR=local"]
    command = [sys.executable, "-m", "capsweep", *words]
    environment = {**os.environ, "DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert f"folder:      {tmp_path / 'data' / 'multimnist'}\n" in done.stdout
    for text in ("1,437 examples in 1 shard\n", "2 shards made, 0 kept, of 2", "train on it:"):
        assert text in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_a_whole_folder_is_said_to_be_whole_and_what_it_holds(whole: Path, capsys: Capture) -> None:
    assert run_data("verify", whole) == 0
    output = capsys.readouterr().out
    for text in (
        "multimnist of digits",
        manifest.read_manifest(whole).content.fingerprint,
        "seed 0, margin 4, shift 4, validation 0; generator version 1",
        "train:       2,874 examples in 3 shards",
        "train on it: capsweep train dataset=multimnist_shards ",
        f"\n{whole}: whole (multimnist, 4 shards, all read)\n",
    ):
        assert text in output


def test_faults_are_lines_and_status_1(whole: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = shutil.copytree(whole, tmp_path / "shards")
    (folder / NAME).unlink()
    assert run_data("verify", folder) == 1
    *_, fault, verdict = capsys.readouterr().out.splitlines()
    assert fault.startswith(f"{folder / NAME}: No such file or directory; run the same `make sh")
    assert verdict == f"{folder}: 1 fault (multimnist, 4 shards, all read)"


def test_a_folder_without_a_manifest_is_bad_input(tmp_path: Path, capsys: Capture) -> None:
    assert run_data("verify", tmp_path) == 2
    assert f"error: {tmp_path / INDEX}: no such file" in capsys.readouterr().err
