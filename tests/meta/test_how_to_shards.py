"""What docs/how-to/shards.md shows to readers without capsweep does run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from capsweep.cli import main

FOLDER = "/data/multimnist"


@pytest.mark.slow
def test_h5py_alone_reads_shards(repository: Path, tmp_path: Path) -> None:
    page = (repository / "docs/how-to/shards.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert FOLDER in program
    assert "capsweep" not in program
    folder = tmp_path / "multimnist"
    small = ["multimnist", "dataset.source=digits", "--pairs", "1", "--shards", "2"]
    options = ["--with-sources", "--executor", "local", "--storage", str(folder)]
    assert main(["data", "make", *small, *options]) == 0

    command = [sys.executable, "-W", "error", "-c", program.replace(FOLDER, str(folder))]
    reader = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert reader.returncode == 0, reader.stderr
    assert "'split': 'test'" in reader.stdout
    assert reader.stdout.count("test example") == 3
