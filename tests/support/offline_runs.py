"""Offline W&B runs, as W&B itself reads them."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from capsweep.tracking.mode import clean_environment


def read_runs(storage: Path) -> dict[str, dict[str, Any]]:
    """Offline W&B runs by id, in the order of their start: config, summary, history rows, run
    fields. Of a run that was opened several times all rows, and the last of everything else."""
    by_id: dict[str, dict[str, Any]] = {}
    for folder in sorted((storage / "wandb").glob("offline-run-*")):
        run = _read_run(folder)
        before = by_id.get(run["run_id"], {"rows": [], "summary": {}})
        run["rows"] = before["rows"] + run["rows"]
        run["summary"] = before["summary"] | run["summary"]
        by_id[run["run_id"]] = before | run
    return by_id


def list_epochs(run: dict[str, Any]) -> list[int]:
    """The epochs of the rows that have metrics, as logged."""
    return [row["epoch"] for row in run["rows"] if "train/loss" in row]


def _read_run(folder: Path) -> dict[str, Any]:
    inspect = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder)]
    printed = subprocess.run(inspect, capture_output=True, check=True, env=clean_environment())
    run: dict[str, Any] = {"config": {}, "rows": [], "summary": {}}
    for record in map(json.loads, printed.stdout.splitlines()):
        match record:
            case {"run": {"config": config, **fields}}:
                run |= fields | {"name": fields["display_name"]}
                run["config"] |= config["update"]
            case {"history": row}:
                run["rows"].append(row["item"])
            case {"summary": {"update": values}}:
                run["summary"] |= values
            case {"environment": {"program": program, "args": words}}:
                run["command"] = shlex.join((program, *words))  # as W&B shows it
            case {"exit": ended}:
                run["exit_code"] = ended["exit_code"]
            case _:
                continue
    return run
