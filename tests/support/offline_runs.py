"""Offline W&B runs, as W&B itself reads them."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any


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
    from wandb.proto.wandb_internal_pb2 import Record

    run: dict[str, Any] = {"config": {}, "rows": [], "summary": {}}
    for frame in _read_frames(next(folder.glob("*.wandb")).read_bytes()):
        record = Record.FromString(frame)
        if record.HasField("run"):
            names = ("run_id", "run_group", "job_type", "project", "notes")
            run |= {name: getattr(record.run, name) for name in names}
            run |= {"name": record.run.display_name, "tags": list(record.run.tags)}
            run["config"] |= _read_items(record.run.config.update)
        if record.HasField("history"):
            run["rows"].append(_read_items(record.history.item))
        if record.HasField("summary"):
            run["summary"] |= _read_items(record.summary.update)
        if record.HasField("environment") and record.environment.program:
            words = (record.environment.program, *record.environment.args)
            run["command"] = shlex.join(words)  # as W&B shows it
        if record.HasField("exit"):
            run["exit_code"] = record.exit.exit_code
    return run


def _read_frames(data: bytes) -> Iterator[bytes]:
    """W&B's transaction log: a 7-byte header, then LevelDB records in blocks of 32 KiB."""
    position, part, block = 7, b"", 32768
    while position + 7 <= len(data):
        left = block - position % block
        size = int.from_bytes(data[position + 4 : position + 6], "little")
        kind = data[position + 6]
        if left < 7 or (kind == 0 and size == 0):
            position += left
            continue
        part = (b"" if kind in (1, 2) else part) + data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):
            yield part


def _read_items(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
