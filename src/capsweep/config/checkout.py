"""The checkout that the package runs from."""

import subprocess
from functools import cache
from typing import Any

import capsweep
from capsweep.config import roots


@cache
def code() -> dict[str, Any]:
    """Version and commit of the checkout, and whether it has changes that are not committed; the
    last two are None outside of one, and where git cannot tell.

    Pages are no changes: a report publishes into them, and they decide no number.
    """
    commit, changes = _ask_git("rev-parse", "HEAD"), None
    if commit:
        changes = _ask_git("status", "--porcelain", "--", ".", ":(exclude)*.md")
    return {
        "capsweep": capsweep.__version__,
        "commit": commit or None,
        "dirty": None if changes is None else bool(changes),
    }


def _ask_git(*words: str) -> str | None:
    """What git answers about the checkout; None where it is absent or refuses."""
    if not (roots.CHECKOUT / ".git").exists():
        return None
    git = ["git", "-C", str(roots.CHECKOUT), *words]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
