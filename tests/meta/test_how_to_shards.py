"""What docs/how-to/shards.md shows to readers without capsweep does run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from capsweep.cli import main

pytestmark = pytest.mark.slow

FOLDER = "/data/multimnist"


@pytest.fixture(scope="module")
def blocks(repository: Path) -> list[str]:
    """The programs of the page."""
    page = (repository / "docs/how-to/shards.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def made(folder: Path, *options: str) -> Path:
    """A small data set of the embedded digits."""
    where = ["--executor", "local", "--storage", str(folder)]
    small = ["multimnist", "dataset.source=digits", "--pairs", "1", "--shards", "2"]
    assert main(["data", "make", *small, *where, *options]) == 0
    return folder


def run(program: str, folder: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """As a file of its own, on that folder."""
    assert FOLDER in program
    assert "capsweep" not in program
    script = tmp_path / "program.py"
    script.write_text(program.replace(FOLDER, str(folder)))
    command = [sys.executable, "-W", "error", str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize("options", [(), ("--with-sources",)], ids=" ".join)
def test_h5py_alone_reads_shards(blocks: list[str], tmp_path: Path, options: tuple[str]) -> None:
    ended = run(blocks[0], made(tmp_path / "multimnist", *options), tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "'split': 'test'" in ended.stdout
    assert ended.stdout.count("test example") == 3


def test_h5py_alone_sees_an_altered_shard(blocks: list[str], tmp_path: Path) -> None:
    folder = made(tmp_path / "multimnist")
    with (folder / "test-00000.h5").open("r+b") as file:
        file.seek(100_000)
        file.write(b"\xff\x00\xff")
    ended = run(blocks[0], folder, tmp_path)
    assert ended.returncode == 1
    assert "test-00000.h5 is altered" in ended.stderr


def test_the_page_has_no_other_program(blocks: list[str]) -> None:
    assert len(blocks) == 1
