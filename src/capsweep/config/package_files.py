"""The files of this installation: their folders, commit and changes, and copies of them.

`conf/`, `sweeps/` and `data_prep/` are at the top of a checkout. In an installed package, `conf/`
and `sweeps/` are inside the folder `capsweep`, and `data_prep/` is beside this folder.
"""

import json
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
SENT = "checkout.json"  # in a copy for another machine: what `read_checkout` returned here
CHANGES = "changes.diff"  # name of the file with the uncommitted changes, in the folder of a cell
MOST_CHANGES = 100_000  # most bytes of this file
PATHS = ("--", ":(exclude)*.md", ":(exclude)sweeps")  # of the files whose changes count
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


def describe_code() -> dict[str, Any]:
    """Return the version, the commit, and whether the checkout has uncommitted changes.

    The values of `commit` and `dirty` are None outside a checkout, or if git fails. If there are
    changes, the value of `changes` names the file with the changes, and its size.
    """
    checkout = {"capsweep": capsweep.__version__, **read_checkout()}
    if changes := checkout.pop("changes"):
        checkout["changes"] = f"{CHANGES} ({len(changes.encode()):,} bytes)"
    return checkout


@cache
def read_checkout() -> dict[str, Any]:
    """Return the commit (`commit`), whether there are changes (`dirty`), and the text of CHANGES.

    Git is asked once in each process. On a node of a cluster, which has a copy of the driver's
    package, the result is that of the driver. Changes of Markdown pages and of sweeps/ do not
    count: they change no number, and a cell records its whole configuration.
    """
    if (sent := PACKAGE / SENT).exists():
        return json.loads(sent.read_text(encoding="utf-8"))
    commit = _ask_git("rev-parse", "HEAD")
    status = _ask_git("status", "--porcelain", *PATHS) if commit else None
    dirty = None if status is None else bool(status)
    return {"commit": commit, "dirty": dirty, "changes": _read_changes(commit) if dirty else ""}


def _read_changes(commit: str | None) -> str:
    """Return the uncommitted changes of tracked files, and the names of new Python and YAML files.

    `git apply` accepts the text, unless the text was cut after MOST_CHANGES bytes. The content of
    untracked files is left out, because such a file may have a password.
    """
    diff = _ask_git("diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD", *PATHS)
    new = _ask_git("ls-files", "--others", "--exclude-standard", *PATHS, "*.py", "*.yaml") or ""
    lines = [*(f"# untracked: {name}" for name in new.splitlines()), *filter(None, [diff]), ""]
    content = "\n".join(lines).encode()
    cut = f"; cut to {MOST_CHANGES:,} bytes" if len(content) > MOST_CHANGES else ""
    kept = content[:MOST_CHANGES].decode(errors="ignore")
    return f"# uncommitted changes to {commit}, without pages and sweeps{cut}\n{kept}"


def _ask_git(*words: str) -> str | None:
    """Return the output of a git command in the checkout, without the last line break.

    The result is None if there is no checkout, or if git fails.
    """
    git = ["git", "-C", str(CHECKOUT), "--git-dir=.git", *words]  # not of a folder above it
    try:
        answer = subprocess.run(git, capture_output=True, check=True)
        return answer.stdout.decode(errors="replace").removesuffix("\n")
    except (OSError, subprocess.CalledProcessError):
        return None


def stage_packages(folder: Path) -> Path:
    """Copy this installation into a folder, and return the path of the copied package.

    The copies are `folder/capsweep`, with `conf/`, `sweeps/` and the file SENT inside, and
    `folder/data_prep`.

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
    (package / SENT).write_text(json.dumps(read_checkout()), encoding="utf-8")
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
