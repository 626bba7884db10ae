"""Where `conf/` and `sweeps/` are: at the top of a checkout, or inside the installed package."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = PACKAGE.parents[1]
JOBS = "data_prep"


def find(name: str) -> Path:
    """The folder `name` ("conf" or "sweeps") of this installation.

    Raises FileNotFoundError when the installation is incomplete.
    """
    for candidate in (PACKAGE / name, CHECKOUT / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"{name}/ is neither in {PACKAGE} nor in {CHECKOUT}: reinstall")


def find_jobs() -> Path:
    """The folder of the package `data_prep`: at the top of a checkout, or installed beside ours.

    Raises FileNotFoundError when the installation is incomplete.
    """
    for candidate in (CHECKOUT / JOBS, PACKAGE.parent / JOBS):
        if (candidate / "__init__.py").is_file():
            return candidate
    raise FileNotFoundError(f"{JOBS}/ is neither in {CHECKOUT} nor in {PACKAGE.parent}: reinstall")
