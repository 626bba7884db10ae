"""The packages as they travel to other machines: `data_prep/` and `capsweep/`, with `conf/` and
`sweeps/` inside as in the wheel, so that they are complete where there is no checkout."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capsweep.config import roots

SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


def stage(folder: Path) -> Path:
    """Copy what is running now into `folder`; returns the copy, `folder/capsweep`, beside which is
    that of `data_prep`.

    Raises FileNotFoundError when this installation is incomplete.
    """
    package = folder / "capsweep"
    shutil.copytree(roots.PACKAGE, package, ignore=SKIPPED, dirs_exist_ok=True)
    for name in ("conf", "sweeps"):
        shutil.copytree(roots.find(name), package / name, ignore=SKIPPED, dirs_exist_ok=True)
    jobs = roots.find_jobs()
    shutil.copytree(jobs, folder / jobs.name, ignore=SKIPPED, dirs_exist_ok=True)
    return package


def list_modules(package: Path) -> list[str]:
    """The folders of a staged copy that Ray sends as `py_modules`."""
    return [str(package), str(package.with_name(roots.JOBS))]


@contextmanager
def staged_for(address: str | None) -> Iterator[Path | None]:
    """The package to be sent to the Ray at an address; None for one of this machine alone, whose
    workers have what is running here.
    """
    if address is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="capsweep-code-") as folder:
        yield stage(Path(folder))
