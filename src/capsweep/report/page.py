"""The page of a sweep: one file that answers its question, and says of every number where it comes
from, in words and for programs (`provenance.json`).
"""

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from capsweep.config import code_identity, package_files
from capsweep.config.cell import flat
from capsweep.ledger.ledger import Ledger
from capsweep.report import cells, figures, formatted_table, grid, render
from capsweep.report.cells import FieldCells, KnownCell, Picture
from capsweep.report.figures import ReportFigure
from capsweep.report.formatted_table import FormattedTable
from capsweep.report.table import ResultTable
from capsweep.storage.files import hash_bytes, write_atomically, write_json, write_text

TEMPLATES = Path(__file__).with_name("templates")
PAGE, NUMBERS, FIGURES = "index.html", "provenance.json", "figures"
# Files of figures, of this report or of an earlier one.
OURS = re.compile(
    r"(loss|error|throughput|learning-rate|margin|cost-time|cost-parameters)(-.+-\d+)?\.(svg|png)"
)
# What is written down of a cell as it stands in its files.
COPIED_OF_PROVENANCE = ("versions", "implementations", "fingerprint", "started", "damaged")
COPIED_OF_RESULT = (
    *("epochs", "parameters", "data", "test_sha256"),
    *("gpu_hours", "images_per_second", "peak_memory_bytes"),
)


def write_page(table: ResultTable, ledger: Ledger, folder: Path) -> list[Path]:
    """Write index.html, figures/ and provenance.json into a report's folder; all that was written,
    the page first.
    """
    fields = cells.read_fields(table, ledger)
    charts = list(figures.make_figures(table, fields))
    code = {**package_files.describe_code(), "package": code_identity.hash_package()}
    making = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "code": code}
    formatted = formatted_table.format_table(table)
    provenance = report_provenance(table, formatted, fields, ledger, making)
    # JSON has no numbers that are not finite: they are words.
    write_json(folder / NUMBERS, json.loads(json.dumps(provenance), parse_constant=str))
    pictures = cells.read_pictures(fields, ledger)
    text = render_page(table, formatted, fields, charts, pictures, making)
    write_text(folder / PAGE, text)
    return [folder / PAGE, folder / NUMBERS, *_write_figures(folder / FIGURES, charts)]


def render_page(
    table: ResultTable,
    formatted: FormattedTable,
    fields: Sequence[FieldCells],
    charts: Sequence[ReportFigure],
    pictures: Mapping[str, Sequence[Picture]],
    making: Mapping[str, Any],
) -> str:
    """The page as text. All that is not ours is escaped, and its one script is named by a hash."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "base64": lambda content: base64.b64encode(content).decode(),
        "config": _list_config,
        "duration": grid.format_duration,
        "section": format_section,
        "sizes": format_sizes,
    }
    script = environment.get_template("open.js").render()
    names = [cells.column_name(table, column) for column in range(len(table.columns))]
    return environment.get_template("index.html.j2").render(
        sweep=table.sweep,
        table=formatted,
        measure=table.measure,
        counts=describe_counts,
        every=cells.distinct_cells(fields),
        row_note=figures.describe_rows(table),
        figures=charts,
        pictures=pictures,
        fields=fields,
        columns=names if len(names) > 1 else [""],
        origin=collect_origin,
        making=making,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _list_config(cell: KnownCell) -> str:
    """All but the seed, a line for each key as overrides name it: YAML takes ten times as long."""
    science = {key: value for key, value in cell.point.cell.science.items() if key != "seed"}
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in flat(science).items())


def describe_counts(cells: Sequence[KnownCell]) -> str:
    """`9 done, 6 missing`."""
    counts = Counter(cell.entry.status for cell in cells)
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def format_section(section: Mapping[str, Any] | None) -> str:
    """`torch 2.13.0, python 3.12`."""
    return ", ".join(
        f"{key} {grid.format_value(value)}" for key, value in flat(section or {}).items()
    )


def format_sizes(sizes: Mapping[str, int | None] | None) -> str:
    """`process 512 MiB, gpu 1,024 MiB`."""
    sizes_used = {name: size for name, size in (sizes or {}).items() if size}
    return ", ".join(f"{name} {size / 2**20:,.0f} MiB" for name, size in sizes_used.items())


def _write_figures(folder: Path, charts: Sequence[ReportFigure]) -> list[Path]:
    """Write the figures that are there, as SVG and PNG; remove other ones of an earlier report."""
    written = []
    for figure in charts:
        if figure.image is not None:
            for ending, content in (("svg", figure.image.svg), ("png", figure.image.png)):
                path = folder / f"{figure.stem}.{ending}"
                write_atomically(path, lambda file, content=content: file.write(content))
                written.append(path)
    for path in set(folder.glob("*")).difference(written):
        if OURS.fullmatch(path.name):
            path.unlink()
    return written


def report_provenance(
    table: ResultTable,
    formatted: FormattedTable,
    fields: Sequence[FieldCells],
    ledger: Ledger,
    making: Mapping[str, Any],
) -> dict[str, Any]:
    """Every number of the table and the cells behind it, as JSON can have it; making: when,
    and by which code, the report is made.
    """
    sweep = table.sweep
    baseline = None if table.baseline is None else list(table.rows[table.baseline].coordinates)
    return {
        "format": 1,
        "sweep": {
            **{key: getattr(sweep, key) for key in render.SWEEP_KEYS},
            "name": sweep.name,
            "file": str(sweep.path),
            "sha256": hash_bytes(sweep.path.read_bytes()),
            "baseline": baseline,
            "stopping": table.stopping,
            "published": sweep.published.source or None,
        },
        "made": making,
        "ledger": ledger.store.root,
        "fields": render.table_records(table, formatted),
        "cells": {cell.signature: collect_origin(cell) for cell in cells.distinct_cells(fields)},
    }


def collect_origin(cell: KnownCell) -> dict[str, Any]:
    """All that was written down of a cell's making; keys of which nothing is known are None."""
    provenance, result = cell.provenance, cell.result
    code = provenance.get("code", {})
    last_row = cell.rows[-1] if cell.rows else {}
    return {
        "signature": cell.signature,
        "name": cell.point.name,
        "status": cell.entry.status,
        "cause": cell.entry.cause,
        "config": f"{cell.where}/config.yaml",
        "command": provenance.get("command", cell.point.cell.command),
        "overrides": provenance.get("overrides", list(cell.point.cell.overrides)),
        "metrics": result.get("metrics") or {k: v for k, v in last_row.items() if "/" in k},
        "numerics": result.get("code", {}).get("numerics") or code.get("numerics"),
        "hardware": cell.hardware,
        "machine": provenance.get("hardware"),
        "seconds": result.get("seconds", {}).get("total"),
        "checkpoint": f"{cell.where}/weights.ckpt" if cell.is_counted else None,
        "wandb": _find_run(cell),
        **{key: code.get(key) for key in ("commit", "dirty", "package")},
        **{key: provenance.get(key) for key in COPIED_OF_PROVENANCE},
        **{key: result.get(key) for key in COPIED_OF_RESULT},
    }


def _find_run(cell: KnownCell) -> dict[str, Any] | None:
    """The W&B run of a cell: its id is the signature; None where the cell was not tracked.

    url: where it is known, which takes a server that was reached while the cell ran.
    """
    logger = cell.provenance.get("logistics", {}).get("logger", {})
    run: Mapping[str, Any] = cell.provenance.get("tracking") or logger
    if run.get("mode", "none") == "none":
        return None
    url = str(cell.result.get("tracking_url"))
    keys = {key: run.get(key) for key in ("project", "entity", "mode")}
    is_address = url.startswith(("https://", "http://"))
    return {"id": cell.signature, **keys, "url": url if is_address else None}
