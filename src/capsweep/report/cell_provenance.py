"""Where every number comes from: what is known of each cell, for programs (`provenance.json`) and
in words.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from capsweep.config import code_identity, package_files
from capsweep.config.cell import flat
from capsweep.ledger.ledger import Ledger
from capsweep.report import render
from capsweep.report.cells import FieldCells, KnownCell, distinct_cells
from capsweep.report.formatted_table import FormattedTable
from capsweep.report.grid import format_value
from capsweep.report.table import ResultTable
from capsweep.statistics import metric_format
from capsweep.storage.files import hash_bytes

FORMAT = 1
STATUS = {
    "done": "finished",
    "stale": "finished, by other code than today's",
    "failed": "failed",
    "stopped": "stopped early by a search",
    "running": "running",
    "missing": "not run",
}

# What is written down of a cell as it stands in its files.
COPIED_OF_PROVENANCE = ("versions", "implementations", "fingerprint", "started", "damaged")
COPIED_OF_RESULT = (
    *("epochs", "parameters", "test_sha256"),
    *("gpu_hours", "images_per_second", "peak_memory_bytes"),
)


def describe_making() -> dict[str, Any]:
    """When, and by which code, a report is made."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {"at": at, "code": {**package_files.describe_code(), "package": code_identity.package()}}


def report_provenance(
    table: ResultTable,
    formatted: FormattedTable,
    fields: Sequence[FieldCells],
    ledger: Ledger,
    making: Mapping[str, Any],
) -> dict[str, Any]:
    """Every number of the table and the cells behind it, as JSON can have it; making: see
    `describe_making`.
    """
    sweep = table.sweep
    baseline = None if table.baseline is None else list(table.rows[table.baseline].coordinates)
    content = {
        "format": FORMAT,
        "sweep": {
            "name": sweep.name,
            "file": str(sweep.path),
            "sha256": hash_bytes(sweep.path.read_bytes()),
            "question": sweep.question,
            "metric": sweep.metric,
            "rows": sweep.rows,
            "columns": sweep.columns,
            "baseline": baseline,
            "stopping": table.stopping,
            "published": sweep.published.source or None,
        },
        "made": making,
        "ledger": ledger.store.root,
        "fields": render.table_records(table, formatted),
        "cells": {cell.signature: collect_origin(cell) for cell in distinct_cells(fields)},
    }
    return _make_finite(content)


def _make_finite(value: Any) -> Any:
    """Plain data as JSON can have it: numbers that are not finite are words."""
    if isinstance(value, Mapping):
        return {key: _make_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_make_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def collect_origin(cell: KnownCell) -> dict[str, Any]:
    """All that was written down of a cell's making; keys of which nothing is known are None."""
    made, result = cell.provenance, cell.result
    code = made.get("code", {})
    last_row = cell.rows[-1] if cell.rows else {}
    return {
        "signature": cell.signature,
        "name": cell.point.name,
        "status": cell.entry.status,
        "cause": cell.entry.cause,
        "config": f"{cell.where}/config.yaml",
        "command": made.get("command", cell.point.cell.command),
        "overrides": made.get("overrides", list(cell.point.cell.overrides)),
        "metrics": result.get("metrics") or {k: v for k, v in last_row.items() if "/" in k},
        "commit": code.get("commit"),
        "dirty": code.get("dirty"),
        "package": code.get("package"),
        "numerics": result.get("code", {}).get("numerics") or code.get("numerics"),
        "hardware": cell.hardware,
        "machine": made.get("hardware"),
        "seconds": result.get("seconds", {}).get("total"),
        "checkpoint": f"{cell.where}/weights.ckpt" if cell.is_counted else None,
        "wandb": _find_run(cell),
        **{key: made.get(key) for key in COPIED_OF_PROVENANCE},
        **{key: result.get(key) for key in COPIED_OF_RESULT},
    }


def _find_run(cell: KnownCell) -> dict[str, Any] | None:
    """The W&B run of a cell: its id is the signature; None where the cell was not tracked.

    url: where it is known, which takes a server that was reached while the cell ran.
    """
    logger = cell.provenance.get("logistics", {}).get("logger", {})
    planned = logger if logger.get("name") == "wandb" else {"mode": "none"}
    run: Mapping[str, Any] = cell.provenance.get("tracking") or planned
    if run.get("mode") == "none":
        return None
    url = cell.result.get("tracking_url")
    keys = {key: run.get(key) for key in ("project", "entity", "mode")}
    is_address = str(url).startswith(("https://", "http://"))
    return {"id": cell.signature, **keys, "url": url if is_address else None}


def format_duration(seconds: float | None) -> str | None:
    """`19.5 s`, `4 min 10 s`, `2 h 03 min`."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def describe_counts(cells: Sequence[KnownCell]) -> str:
    """`9 finished, 6 not run`."""
    counts = Counter(STATUS[cell.entry.status] for cell in cells)
    return "; ".join(f"{counts[status]} {status}" for status in STATUS.values() if counts[status])


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Those of the test first."""
    texts = []
    for name in sorted(metrics, key=lambda name: (not name.startswith("test"), name)):
        measure = metric_format.measure_of(name)
        texts.append(f"{name} {measure.format_number(metrics[name])}{measure.unit}")
    return ", ".join(texts)


def format_section(section: Mapping[str, Any] | None) -> str:
    """`torch 2.13.0, python 3.12`."""
    return ", ".join(f"{key} {format_value(value)}" for key, value in flat(section or {}).items())


def format_sizes(sizes: Mapping[str, int | None] | None) -> str:
    """`process 512 MiB, gpu 1,024 MiB`."""
    known = {name: size for name, size in (sizes or {}).items() if size}
    return ", ".join(f"{name} {size / 2**20:,.0f} MiB" for name, size in known.items())
