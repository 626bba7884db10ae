"""provenance.json: every number of the table, and the cells that it was made from."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from capsweep.config import code_identity, package_files
from capsweep.ledger.ledger import Ledger
from capsweep.report import cell_provenance, records
from capsweep.report.cells import FieldCells, distinct_cells
from capsweep.report.formatted_table import FormattedTable
from capsweep.report.table import ResultTable
from capsweep.storage.files import hash_bytes

FORMAT = 1


def describe_making() -> dict[str, Any]:
    """When, and by which code, a report is made."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {"at": at, "code": {**package_files.describe_code(), "package": code_identity.package()}}


def report_provenance(
    table: ResultTable,
    written: FormattedTable,
    fields: Sequence[FieldCells],
    ledger: Ledger,
    now: dict[str, Any],
) -> dict[str, Any]:
    """The whole of it, as JSON can have it; now: see `made`."""
    sweep = table.sweep
    baseline = None if table.baseline is None else list(table.rows[table.baseline].coordinates)
    return cell_provenance.make_finite(
        {
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
            "made": now,
            "ledger": ledger.store.root,
            "fields": records.table_records(table, written),
            "cells": {
                cell.signature: cell_provenance.collect_origin(cell)
                for cell in distinct_cells(fields)
            },
        }
    )
