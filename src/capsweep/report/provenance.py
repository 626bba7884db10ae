"""provenance.json: every number of the table, and the cells that it was made from."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from capsweep.config import checkout, code_identity
from capsweep.files import sha256_of
from capsweep.ledger.ledger import Ledger
from capsweep.report import origin
from capsweep.report.cells import FieldCells, distinct
from capsweep.report.table import Table, Value
from capsweep.statistics.paired import Paired

FORMAT = 1


def made() -> dict[str, Any]:
    """When, and by which code, a report is made."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    code = checkout.code()
    if code["commit"] is None:  # else a second or two are saved
        code = {**code, "package": code_identity.package()}
    return {"at": at, "code": code}


def of(
    table: Table, fields: Sequence[FieldCells], ledger: Ledger, now: dict[str, Any]
) -> dict[str, Any]:
    """The whole of it, as JSON can have it; now: see `made`."""
    sweep = table.sweep
    baseline = None if table.baseline is None else list(table.rows[table.baseline].coordinates)
    return origin.finite(
        {
            "format": FORMAT,
            "sweep": {
                "name": sweep.name,
                "file": str(sweep.path),
                "sha256": sha256_of(sweep.path.read_bytes()),
                "question": sweep.question,
                "metric": sweep.metric,
                "rows": sweep.rows,
                "columns": sweep.columns,
                "baseline": baseline,
                "stopping": table.stopping,
                "published": sweep.published.source or None,
            },
            "made": now,
            "ledger": ledger.store.root,
            "fields": [_field(table, field) for field in fields],
            "cells": {cell.signature: origin.of(cell) for cell in distinct(fields)},
        }
    )


def _field(table: Table, field: FieldCells) -> dict[str, Any]:
    row, sweep = table.rows[field.row], table.sweep
    return {
        "row": dict(zip(sweep.rows, row.coordinates, strict=True)),
        "column": dict(zip(sweep.columns, table.columns[field.column], strict=True)),
        **_numbers(row.values[field.column]),
        "published": list(row.published),
        "cells": {str(seed): cell.signature for seed, cell in sorted(field.cells.items())},
    }


def _numbers(value: Value | None) -> dict[str, Any]:
    if value is None:
        return {}
    summary = value.summary
    return {
        "wanted": value.wanted,
        "n": len(value.by_seed),
        "by_seed": {str(seed): number for seed, number in sorted(value.by_seed.items())},
        "mean": None if summary is None else summary.mean,
        "std": None if summary is None else summary.std,
        "interval": None if summary is None else summary.interval,
        "stale": value.stale,
        "causes": list(value.causes),
        "difference": _difference(value.difference, value.p),
    }


def _difference(difference: Paired | None, p: float | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    return {
        "n": difference.n,
        "mean": difference.mean,
        "interval": difference.interval,
        "p_holm": p,
        "p_sign_flip": difference.sign_flip,
    }
