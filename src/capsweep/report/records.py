"""A table for programs: one record for each field, numbers in full precision, as CSV and JSON."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from capsweep.report.formatted_table import FormattedTable
from capsweep.report.table import CellGroup, ResultTable, TableRow, published_numbers

# Beside the coordinates. Fractions are fractions, not percent. What a table does not show as a
# number (a mean of some of the seeds) is none here; `values` has what is there.
COLUMNS = (
    "n",
    "wanted",
    "mean",
    "std",
    "interval_low",
    "interval_high",
    "difference",
    "difference_n",
    "difference_low",
    "difference_high",
    "p",
    "best",
    "published",
    "values",
    "causes",
    "stale",
    "cells",
)
Record = dict[str, Any]


def table_records(table: ResultTable, written: FormattedTable) -> list[Record]:
    """A record for each row and column that has cells: its coordinates by key, then COLUMNS."""
    return list(_walk_records(table, written))


def as_csv(table: ResultTable, written: FormattedTable) -> str:
    """The records with a header. Nothing is an empty field; several words are joined by a space,
    `seed=value` where they belong to seeds, causes by "; ".
    """
    file = io.StringIO()
    header = [*table.sweep.rows, *table.sweep.columns, *COLUMNS]
    writer = csv.DictWriter(file, header, lineterminator="\n")
    writer.writeheader()
    for record in _walk_records(table, written):
        writer.writerow({key: _csv_word(key, value) for key, value in record.items()})
    return file.getvalue()


def as_json(table: ResultTable, written: FormattedTable) -> str:
    """What the table is about, and its records; notes: as below the table."""
    sweep = table.sweep
    baseline = None if table.baseline is None else table.rows[table.baseline].coordinates
    about = {
        "sweep": sweep.name,
        "question": sweep.question,
        "metric": sweep.metric,
        "higher_is_better": table.measure.higher_is_better,
        "rows": sweep.rows,
        "columns": sweep.columns,
        "baseline": baseline and dict(zip(sweep.rows, baseline, strict=True)),
        "published_source": sweep.published.source or None,
        "notes": written.notes,
    }
    content = {**about, "fields": table_records(table, written)}
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)


def _walk_records(table: ResultTable, written: FormattedTable) -> Iterator[Record]:
    for line in written.lines:
        row = table.rows[line.row]
        for field in line.fields:
            if field.kind != "value" or field.column is None:
                continue
            value = row.values[field.column]
            if value is not None:
                yield _make_record(table, row, field.column, value, field.best)


def _make_record(
    table: ResultTable, row: TableRow, column: int, value: CellGroup, best: bool
) -> Record:
    sweep = table.sweep
    keys, coordinates = (*sweep.rows, *sweep.columns), (*row.coordinates, *table.columns[column])
    return {
        **dict(zip(keys, coordinates, strict=True)),
        "n": len(value.by_seed),
        "wanted": value.wanted,
        **_value_numbers(value),
        **_difference_numbers(value),
        "best": best,
        "published": published_numbers(sweep, row.coordinates),
        "values": dict(value.by_seed),
        "causes": list(value.causes),
        "stale": value.stale,
        "cells": dict(value.cells),
    }


def _value_numbers(value: CellGroup) -> Record:
    summary = value.summary if value.is_complete else None
    low, high = (summary and summary.interval) or (None, None)
    return {
        "mean": summary and summary.mean,
        "std": summary and summary.std,
        "interval_low": low,
        "interval_high": high,
    }


def _difference_numbers(value: CellGroup) -> Record:
    found = value.difference
    low, high = (found and found.interval) or (None, None)
    return {
        "difference": found and found.mean,
        "difference_n": found and found.n,
        "difference_low": low,
        "difference_high": high,
        "p": value.p,
    }


def _csv_word(key: str, value: Any) -> Any:
    """A value of a record as a field of the CSV, which writes floats by repr and loses nothing."""
    if isinstance(value, bool):
        return str(value).lower()
    if key == "cells":
        return " ".join(value.values())
    if isinstance(value, Mapping):
        return " ".join(f"{name}={number!r}" for name, number in value.items())
    if key == "published":
        return "; ".join(" ".join(f"{k}={v}" for k, v in number.items()) for number in value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "; ".join(value)
    return value
