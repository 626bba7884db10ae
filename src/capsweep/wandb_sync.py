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
    import wandb

    from capsweep.training.wandb_mode import has_login

    host = wandb.Settings().base_url
    if not has_login(host):
        waiting = f"{len(runs)} offline runs wait, but nobody is logged in at {host}"
        raise UserError(f"{waiting}; run .venv/bin/wandb login")
    return subprocess.run([sys.executable, "-m", "wandb", "sync", *map(str, runs)]).returncode
