"""`capsweep data verify` as a person and a program meet it."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import shard_folders

from capsweep import cli
from capsweep.data.shards.manifest import INDEX

NAME = "train-00001.h5"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards a split. To be read only."""
    folder = tmp_path_factory.mktemp("whole") / "shards"
    shard_folders.make(folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """The same, to be spoiled."""
    return shutil.copytree(whole, tmp_path / "shards")


def verify(*arguments: object) -> int:
    return cli.main(["data", "verify", *map(str, arguments)])


def test_a_whole_folder_is_said_to_be_whole_with_the_speed(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(whole) == 0
    said = capsys.readouterr().out
    assert f"{whole}: whole (multimnist, 6 shards, all read)" in said
    assert "GB/s" in said


def test_faults_are_lines_and_status_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / NAME).unlink()
    (folder / "notes.txt").write_text("mine")
    assert verify(folder) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [
        f"{NAME}: missing: no such file",
        "notes.txt: surplus: a file that index.json does not name",
    ]
    assert said[2].startswith("missing: run the same `make shards` again")
    assert said[3] == "surplus: move it away, or delete it"
    assert f"{folder}: 2 faults in 2 files" in said[-1]


def test_json_has_all_of_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder / NAME).open("ab") as file:
        file.write(b"more")
    assert verify(folder, "--json", "--deep", "--sample", "20") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["whole"], told["store"], told["shards"]) == (False, "pixels", 6)
    assert [(fault["file"], fault["kind"]) for fault in told["faults"]] == [(NAME, "grown")]
    assert 10 < told["compared"] < 20  # none of the shard that is damaged
    assert told["bytes"] > 0


def test_deep_finds_what_a_hash_does_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from capsweep.files import sha256_of_file

    before = sha256_of_file(folder / NAME)
    with h5py.File(folder / NAME, "r+") as file:
        file["images"][0, 0, 0, 0] = 255 - int(np.asarray(file["images"][0, 0, 0, 0]))
    text = (folder / INDEX).read_text()
    (folder / INDEX).write_text(text.replace(before, sha256_of_file(folder / NAME)))
    assert verify(folder) == 0
    assert verify(folder, "--deep", "--sample", "1%") == 1
    said = capsys.readouterr().out
    assert f"{NAME}: different: 1 of " in said
    assert "images of train 958" in said
    assert "different: delete it, and run the same `make shards` again" in said


def test_overrides_of_data_make_may_be_given_again(whole: Path) -> None:
    assert verify(whole, "dataset.source=digits", "--deep", "--sample", "5") == 0


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--sample", "5"], "--sample, --data-dir and overrides belong to --deep"),
        (["--data-dir", "x"], "--deep"),
        (["dataset.source=digits"], "--deep"),
        (["--deep", "--sample", "none"], "--sample"),
        (["--deep", "dataset.nonsense=1"], "dataset.nonsense"),
        (["--deep", "dataset.batches.seed=3"], "settings.seed: 0 in index.json, 3 here"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    whole: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], names: str
) -> None:
    assert verify(whole, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert names in printed.err


def test_a_folder_without_a_manifest_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path, tmp_path / "gone", tmp_path / "gone" / "further"):
        assert verify(path) == 2
        assert f"error: {path / INDEX}: no such file" in capsys.readouterr().err


def test_a_virtual_data_set_says_that_nothing_is_to_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard_folders.make(tmp_path, store="virtual")
    assert verify(tmp_path) == 0
    assert "virtual: there is nothing to read" in capsys.readouterr().out
    assert verify(tmp_path, "--deep") == 0
    assert "it is of the source that is read here" in capsys.readouterr().out


def make(folder: Path, *arguments: str) -> int:
    local = ["--executor", "local", "--storage", str(folder), "--pairs", "1"]
    return cli.main(["data", "make", "multimnist", *local, *arguments, "dataset.source=digits"])


def test_a_folder_that_is_not_finished_says_how_far_it_is_and_how_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "shards"
    assert make(folder, "--shards", "3", "--gzip", "2", "dataset.batches.seed=4") == 0
    assert verify(folder) == 0
    (folder / INDEX).unlink()
    (folder / NAME).write_bytes(b"")
    (folder / ".train-00002.h5.host.99.tmp").write_bytes(b"")
    capsys.readouterr()
    assert verify(folder) == 1
    said = capsys.readouterr().out
    assert f"{NAME}: truncated: 0 bytes" in said
    assert ".train-00002.h5.host.99.tmp: leftover" in said
    assert "unfinished: 4 of 4 shards are recorded as finished" in said
    command = said.rpartition("this goes on: capsweep ")[2].split()
    assert verify(folder, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["wanted"], told["whole"]) == (4, False)
    assert told["command"].split()[1:] == command
    # The command is the one that goes on: it makes what is missing, and that alone.
    assert cli.main([*command, "--executor", "local"]) == 0
    assert "1 shards made, 3 kept, of 4" in capsys.readouterr().out
    assert verify(folder) == 0


def test_records_that_are_altered_are_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "shards"
    assert make(folder, "--store", "virtual") == 0
    (folder / INDEX).unlink()
    capsys.readouterr()
    for text in ("", "[]", '{"dataset": 1}', "[" * 100_000):
        (folder / ".making" / "wanted.json").write_text(text)
        assert verify(folder) == 2
        assert "wanted.json: altered" in capsys.readouterr().err
