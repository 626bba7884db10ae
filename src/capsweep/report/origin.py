"""Where the numbers of a cell come from, as plain data: for provenance.json and for the page."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from capsweep.report.cells import KnownCell
from capsweep.report.costs import hardware_of


def collect_origin(cell: KnownCell) -> dict[str, Any]:
    """All that was written down of a cell's making; keys of which nothing is known are None."""
    made, result = cell.provenance, cell.result
    code = made.get("code", {})
    return {
        "signature": cell.signature,
        "name": cell.point.name,
        "status": cell.entry.status,
        "cause": cell.entry.cause,
        "config": f"{cell.where}/config.yaml",
        "command": made.get("command", cell.point.cell.command),
        "overrides": made.get("overrides", list(cell.point.cell.overrides)),
        "metrics": result.get("metrics") or _last_metrics(cell.rows),
        "epochs": result.get("epochs"),
        "parameters": result.get("parameters"),
        "commit": code.get("commit"),
        "dirty": code.get("dirty"),
        "package": code.get("package"),
        "numerics": result.get("code", {}).get("numerics") or code.get("numerics"),
        "versions": made.get("versions"),
        "implementations": made.get("implementations"),
        "fingerprint": made.get("fingerprint"),
        "test_sha256": result.get("test_sha256"),
        "hardware": hardware_of(cell),
        "machine": made.get("hardware"),
        "started": made.get("started"),
        "seconds": result.get("seconds", {}).get("total"),
        "gpu_hours": result.get("gpu_hours"),
        "images_per_second": result.get("images_per_second"),
        "peak_memory_bytes": result.get("peak_memory_bytes"),
        "checkpoint": f"{cell.where}/weights.ckpt" if cell.is_counted else None,
        "wandb": tracked_run(cell),
        "damaged": made.get("damaged"),
    }


def tracked_run(cell: KnownCell) -> dict[str, Any] | None:
    """The W&B run of a cell: its id is the signature; None where the cell was not tracked.

    url: where it is known, which takes a server that was reached while the cell ran.
    """
    logger = cell.provenance.get("logistics", {}).get("logger", {})
    before = logger if logger.get("name") == "wandb" else {"mode": "none"}
    known: Mapping[str, Any] = cell.provenance.get("tracking") or before
    if known.get("mode") == "none":
        return None
    url = cell.result.get("tracking_url")
    return {
        "id": cell.signature,
        "project": known.get("project"),
        "entity": known.get("entity"),
        "mode": known.get("mode"),
        "url": url if str(url).startswith(("https://", "http://")) else None,
    }


def make_finite(value: Any) -> Any:
    """Plain data as JSON can have it: numbers that are none are told in words."""
    if isinstance(value, Mapping):
        return {key: make_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [make_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _last_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The metrics of the last epoch of a cell that is not finished."""
    return {key: value for key, value in rows[-1].items() if "/" in key} if rows else {}
