"""A Python as a cluster's nodes may have it: with all that capsweep needs, and no capsweep."""

import subprocess
import venv
from pathlib import Path

import pytest
import torch


def make(folder: Path) -> Path:
    """The interpreter of a new environment in `folder`; skips where capsweep would come along."""
    venv.create(folder, symlinks=True)
    libraries = next((folder / "lib").glob("python*/site-packages"))
    # Further .pth files in the folder that it names, as of an editable capsweep, are not read.
    (libraries / "libraries.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    python = folder / "bin" / "python"
    sees = [python, "-I", "-c", "import torch, ray, capsweep.cli"]
    said = subprocess.run(sees, capture_output=True, text=True, cwd=folder).stderr
    if "No module named 'capsweep" not in said:
        pytest.skip(f"capsweep is installed beside the libraries, not in a checkout: {said}")
    return python
