"""The files of this installation: their folders, their commit, and copies for other machines.

`conf/`, `sweeps/` and `data_prep/` are at the top of a checkout. In an installed package, `conf/`
and `sweeps/` are inside the folder `capsweep`, and `data_prep/` is beside this folder.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import capsweep
from capsweep.storage.scratch import make_scratch_prefix

PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = PACKAGE.parents[1]
JOBS = "data_prep"
SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", "*.tar.xz", "*.npz")


def find_folder(name: str) -> Path:
    """Find the folder `name` ("conf" or "sweeps") of this installation.

    Raises:
        FileNotFoundError: If the installation does not have this folder.
    """
    for candidate in (PACKAGE / name, CHECKOUT / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"{name}/ is neither in {PACKAGE} nor in {CHECKOUT}: reinstall")


@cache
def describe_code() -> dict[str, Any]:
    """Return the version, the commit, and whether the checkout has uncommitted changes.

    The values of `commit` and `dirty` are None outside a checkout, or if git fails. Changes of
    Markdown pages do not count, because reports write into pages, and pages change no number.
    """
    commit = _ask_git("rev-parse", "HEAD")
    changes = _ask_git("status", "--porcelain", "--", ".", ":(exclude)*.md") if commit else None
    return {
        "capsweep": capsweep.__version__,
        "commit": commit or None,
        "dirty": None if changes is None else bool(changes),
    }


def _ask_git(*words: str) -> str | None:
    """Return the output of a git command in the checkout.

    The result is None if there is no checkout, or if git fails.
    """
    if not (CHECKOUT / ".git").exists():
        return None
    git = ["git", "-C", str(CHECKOUT), *words]
    try:
        answer = subprocess.run(git, capture_output=True, encoding="utf-8", check=True)
        return answer.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def stage_packages(folder: Path) -> Path:
    """Copy this installation into a folder, and return the path of the copied package.

    The copies are `folder/capsweep`, with `conf/` and `sweeps/` inside, and `folder/data_prep`.

    Raises:
        FileNotFoundError: If this installation is incomplete.
    """
    package = folder / "capsweep"
    sources = {
        package: PACKAGE,
        package / "conf": find_folder("conf"),
        package / "sweeps": find_folder("sweeps"),
        folder / JOBS: Path(str(files(JOBS))),  # Ray unpacks data_prep into a separate folder
    }
    for target, source in sources.items():
        shutil.copytree(source, target, ignore=SKIPPED, dirs_exist_ok=True)
    return package


@contextmanager
def staged_packages_for(address: str | None) -> Iterator[Path | None]:
    """Yield the path of a temporary copy of the package, for the Ray cluster at `address`.

    If `address` is None, yield None, because the workers of a local Ray use this installation.
    """
    if address is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix=make_scratch_prefix("capsweep-code")) as folder:
        yield stage_packages(Path(folder))
