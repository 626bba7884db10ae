"""Upload offline W&B runs with W&B's own command."""

import subprocess
import sys
from pathlib import Path

from capsweep.errors import UserError


def main(storage: Path) -> int:
    """Upload every offline run below `storage`/wandb that is not yet uploaded; W&B's exit status.

    Raises UserError when nobody is logged in.
    """
    runs = sorted((storage / "wandb").glob("offline-run-*"))
    if not runs:
        print(f"no offline runs in {storage / 'wandb'}")
        return 0
    from capsweep.tracking import mode as modes

    url = modes.server()
    if not modes.has_login(url):
        waiting = f"{len(runs)} offline runs wait, but nobody is logged in at {url}"
        raise UserError(f"{waiting}; run .venv/bin/wandb login")
    return subprocess.run([sys.executable, "-m", "wandb", "sync", *map(str, runs)]).returncode
