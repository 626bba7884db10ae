"""The checkout that the package runs from."""

import subprocess
from functools import cache
from typing import Any

import capsweep
from capsweep.config import roots


@cache
def code() -> dict[str, Any]:
    """Version and commit of the checkout, and whether it has changes that are not committed; the
    last two are None outside of one.

    Pages are no changes: a report publishes into them, and they decide no number.
    """
    git = ["git", "-C", str(roots.CHECKOUT)]
    if not (roots.CHECKOUT / ".git").exists():
        return {"capsweep": capsweep.__version__, "commit": None, "dirty": None}
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    changed = [*git, "status", "--porcelain", "--", ".", ":(exclude)*.md"]
    status = subprocess.run(changed, capture_output=True, text=True)
    return {
        "capsweep": capsweep.__version__,
        "commit": commit.stdout.strip() or None,
        "dirty": bool(status.stdout.strip()),
    }
