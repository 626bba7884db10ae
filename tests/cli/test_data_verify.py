"""`capsweep data verify` as a person and a program meet it."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import shard_folders

from capsweep import cli
from capsweep.shards.manifest import INDEX

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


def test_a_whole_folder_is_said_to_be_whole(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(whole) == 0
    said = capsys.readouterr().out
    assert f"{whole}: whole (multimnist, 6 shards, all read)" in said


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
    assert verify(folder, "--json", "--again", "20") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["whole"], told["shards"]) == (False, 6)
    assert [(fault["file"], fault["kind"]) for fault in told["faults"]] == [(NAME, "grown")]
    assert 10 < told["compared"] < 20  # none of the shard that is damaged


def test_examples_made_again_show_what_a_hash_does_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from capsweep.storage.files import hash_file

    before = hash_file(folder / NAME)
    with h5py.File(folder / NAME, "r+") as file:
        file["images"][0, 0, 0, 0] = 255 - int(np.asarray(file["images"][0, 0, 0, 0]))
    text = (folder / INDEX).read_text()
    (folder / INDEX).write_text(text.replace(before, hash_file(folder / NAME)))
    assert verify(folder) == 0
    assert verify(folder, "--again", "40") == 1
    said = capsys.readouterr().out
    assert f"{NAME}: different: 1 of " in said
    assert "images of train 958" in said
    assert "different: delete it, and run the same `make shards` again" in said


def test_overrides_of_data_make_may_be_given_again(whole: Path) -> None:
    assert verify(whole, "dataset.source=digits", "--again", "5") == 0


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--sample", "5"], "--deep, --sample: use --again N"),
        (["--deep"], "--deep, --sample: use --again N"),
        (["--data-dir", "x"], "--again"),
        (["dataset.source=digits"], "--again"),
        (["--again", "0"], "--again must be >= 1, got 0"),
        (["--again", "9", "dataset.nonsense=1"], "dataset.nonsense"),
        (["--again", "9", "dataset.batches.seed=3"], "settings.seed: 0 in index.json, 3 here"),
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
