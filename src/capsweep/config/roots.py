"""Where `conf/` and `sweeps/` are: at the top of a checkout, or inside the installed package."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = PACKAGE.parents[1]


def find(name: str) -> Path:
    """The folder `name` ("conf" or "sweeps") of this installation.

    Raises FileNotFoundError when the installation is incomplete.
    """
    for candidate in (PACKAGE / name, CHECKOUT / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"{name}/ is neither in {PACKAGE} nor in {CHECKOUT}: reinstall")
