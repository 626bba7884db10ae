"""Claims of processes on another machine, which nobody here can look at."""

import json
from pathlib import Path


def write_claim(
    ledger: Path, signature: str, generation: int = 1, beat: int = 3, pid: int = 1
) -> Path:
    """Write the file of a claim on a cell, and return its path."""
    owner = {"host": "far", "machine": "another boot", "pid": pid, "started": "1"}
    path = ledger / "claims" / f"{signature}.{generation:06d}"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"owner": owner, "beat": beat}))
    return path
