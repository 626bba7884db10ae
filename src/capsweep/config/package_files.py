"""The files of this installation: where `conf/`, `sweeps/` and `data_prep/` are, which commit they
are, and copies of them for other machines.

They are at the top of a checkout, or installed inside of `capsweep` and beside it.
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
from capsweep.storage.scratch import own_prefix

PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = PACKAGE.parents[1]
JOBS = "data_prep"
SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", "*.tar.xz")


def find_folder(name: str) -> Path:
    """The folder `name` ("conf" or "sweeps") of this installation.

    Raises FileNotFoundError when the installation is incomplete.
    """
    for candidate in (PACKAGE / name, CHECKOUT / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"{name}/ is neither in {PACKAGE} nor in {CHECKOUT}: reinstall")


@cache
def describe_code() -> dict[str, Any]:
    """Version and commit of the checkout, and whether it has changes that are not committed; the
    last two are None outside of one, and where git cannot tell.

    Pages are no changes: a report publishes into them, and they decide no number.
    """
    commit = _ask_git("rev-parse", "HEAD")
    changes = _ask_git("status", "--porcelain", "--", ".", ":(exclude)*.md") if commit else None
    return {
        "capsweep": capsweep.__version__,
        "commit": commit or None,
        "dirty": None if changes is None else bool(changes),
    }


def _ask_git(*words: str) -> str | None:
    """What git answers about the checkout; None where it is absent or refuses."""
    if not (CHECKOUT / ".git").exists():
        return None
    git = ["git", "-C", str(CHECKOUT), *words]
    try:
        answer = subprocess.run(git, capture_output=True, encoding="utf-8", check=True)
        return answer.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def stage_packages(folder: Path) -> Path:
    """Copy what is running now into `folder`; returns the copy, `folder/capsweep`, beside which is
    that of `data_prep`.

    Raises FileNotFoundError when this installation is incomplete.
    """
    package = folder / "capsweep"
    sources = {
        package: PACKAGE,
        package / "conf": find_folder("conf"),
        package / "sweeps": find_folder("sweeps"),
        folder / JOBS: Path(str(files(JOBS))),  # Ray unpacks it into a folder of its own for a job
    }
    for target, source in sources.items():
        shutil.copytree(source, target, ignore=SKIPPED, dirs_exist_ok=True)
    return package


@contextmanager
def staged_packages_for(address: str | None) -> Iterator[Path | None]:
    """The package to be sent to the Ray at an address; None for one of this machine alone, whose
    workers have what is running here.
    """
    if address is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix=own_prefix("capsweep-code")) as folder:
        yield stage_packages(Path(folder))
