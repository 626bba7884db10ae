"""`capsweep data`: make, verify and info as a person meets them."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import shard_folders
from PIL import Image

from capsweep import cli
from capsweep.shards import manifest
from capsweep.shards.layout import describe_shard
from capsweep.shards.manifest import INDEX, DataSetContent

Capture = pytest.CaptureFixture[str]
NAME = "train-00001.h5"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards a split. To be read only."""
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


def test_a_whole_folder_is_said_to_be_whole(whole: Path, capsys: Capture) -> None:
    assert run_data("verify", whole) == 0
    assert capsys.readouterr().out == f"{whole}: whole (multimnist, 6 shards, all read)\n"


def change_content(folder: Path, content: DataSetContent) -> None:
    """Have files and index.json say that examples are something else."""
    stored = manifest.read_manifest(folder)
    manifest.write_manifest(folder, replace(stored, content=content))
    for shard in stored.shards:
        with h5py.File(folder / shard.name, "r+") as file:
            file.attrs.update(describe_shard(content, shard.split, shard.first))
        shard_folders.rehash(folder, shard.name)


def test_faults_are_lines_and_status_1(whole: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = shutil.copytree(whole, tmp_path / "shards")
    (folder / NAME).unlink()
    assert run_data("verify", folder) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{NAME}: missing: no such file"
    assert lines[1].startswith("missing: run the same `make shards` again")
    assert lines[-1] == f"{folder}: 1 fault (multimnist, 6 shards, all read)"


def test_a_folder_without_a_manifest_is_bad_input(tmp_path: Path, capsys: Capture) -> None:
    assert run_data("verify", tmp_path) == 2
    assert f"error: {tmp_path / INDEX}: no such file" in capsys.readouterr().err


@pytest.mark.parametrize("settings", [{}, {"margin": "wide"}, {"margin": [4]}, {"margin": -1}])
def test_settings_of_pairs_that_are_no_numbers_are_one_line(
    settings: dict[str, Any], whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = shutil.copytree(whole, tmp_path / "shards")
    stored = manifest.read_manifest(folder)
    change_content(folder, replace(stored.content, settings=settings))
    assert run_data("info", folder, "--picture", tmp_path / "x.png") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: index.json: settings.margin is ")


def test_info_prints_the_manifest_and_draws_what_is_stored(
    whole: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_data("info", whole) == 0
    output = capsys.readouterr().out
    content = manifest.read_manifest(whole).content
    for text in (
        "multimnist of digits",
        content.fingerprint,
        content.origin.sha256,
        "seed 0, margin 4, shift 4, validation 0; generator version 1",
        "2,874",
        "1x36x36",
        f"{tmp_path / 'pairs-examples.png'}",
        "train on it: capsweep train dataset=multimnist_shards ",
    ):
        assert text in output
    assert [path.name for path in tmp_path.iterdir()] == ["pairs-examples.png"]
    picture = np.asarray(Image.open(tmp_path / "pairs-examples.png").convert("L"))
    assert (picture < 250).sum() > 3000
