"""`capsweep data make` as it is typed: in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

SMALL = ["multimnist", "dataset.source=digits", "--pairs=1", "--executor=local"]


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The command, and what it prints."""
    command = [sys.executable, "-m", "capsweep", "data", "make", *arguments]
    given = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=given)


def test_programs_get_one_object_and_people_the_rest(tmp_path: Path) -> None:
    done = run(*SMALL, f"--storage={tmp_path / 'pairs'}", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["plan"]["content"]["splits"] == {"train": 1437, "test": 360}
    assert told["plan"]["folder"] == str(tmp_path / "pairs")
    assert told["plan"]["examples_per_second"] > 0
    counts = {"total": 2, "status": 0, "made": 2, "kept": 0, "failures": {}}
    assert counts.items() <= told["ended"].items()
    for text in ("1,437 examples in 1 shards", "2 shards made, 0 kept, of 2", "train on it:"):
        assert text in done.stderr


def test_data_sets_go_below_the_data_folder(tmp_path: Path) -> None:
    done = run(*SMALL, "--dry-run", DATA_DIR=str(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    assert f"folder:    {tmp_path / 'data' / 'multimnist'}\n" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_option_or_override_that_is_none_is_named(tmp_path: Path) -> None:
    there = f"--storage={tmp_path / 'pairs'}"
    done = run(*SMALL, there, "--shard=3", "--pear=2")
    assert done.returncode == 2
    assert "unrecognized arguments: --pear=2" in done.stderr
    done = run(*SMALL, there, "model.conv.chanels=3")
    assert done.returncode == 2
    assert "model.conv.chanels" in done.stderr
