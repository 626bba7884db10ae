"""`capsweep data`: make and verify as a person meets them."""

import shutil
from pathlib import Path

import pytest
import shard_folders

from capsweep import cli
from capsweep.shards import manifest

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


def test_a_folder_is_made_below_data_dir(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["dataset.source=digits", "PAIRS=1", "EXECUTOR=local", f"DATA_DIR={tmp_path}"]
    assert run_data("make", *words) == 0
    printed = capfd.readouterr()
    assert f"folder:      {tmp_path / 'multimnist'}\n" in printed.out
    for text in ("1,437 examples in 1 shard\n", "2 shards made, 0 kept, of 2", "train on it:"):
        assert text in printed.out
    assert "\x1b" not in printed.out + printed.err


def test_a_whole_folder_is_said_to_be_whole_and_what_it_holds(whole: Path, capsys: Capture) -> None:
    assert run_data("verify", whole) == 0
    output = capsys.readouterr().out
    for text in (
        "multimnist, made from digits",
        manifest.read_manifest(whole).content.fingerprint,
        "seed 0, margin 4, shift 4, validation 0; generator version 1",
        "train:       2,874 examples in 3 shards",
        "train on it: capsweep train dataset=multimnist_shards ",
        f"\n{whole}: complete (multimnist, 4 shards, all read)\n",
    ):
        assert text in output


def test_faults_are_lines_and_status_1(whole: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = shutil.copytree(whole, tmp_path / "shards")
    (folder / NAME).unlink()
    assert run_data("verify", folder) == 1
    *_, fault, verdict = capsys.readouterr().out.splitlines()
    assert fault.startswith(f"{folder / NAME}: No such file or directory; run the same `make sh")
    assert verdict == f"{folder}: 1 fault (multimnist, 4 shards, all read)"
