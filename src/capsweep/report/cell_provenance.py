"""What a person reads of a cell: names and texts."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capsweep.config.cell import flat
from capsweep.report.cells import FieldCells, KnownCell, column_name
from capsweep.report.grid import MISSING, format_value
from capsweep.report.table import ResultTable
from capsweep.statistics import metric_format

STATUS = {
    "done": "finished",
    "stale": "finished, by other code than today's",
    "failed": "failed",
    "stopped": "stopped early by a search",
    "running": "running",
    "missing": "not run",
}


def list_facts(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and text of each fact, from what `origin.of` tells; what is unknown says so."""
    found = [
        ("status", STATUS[told["status"]]),
        ("cause", told["cause"]),
        ("signature", told["signature"]),
        ("metrics", _format_metrics(told["metrics"])),
        ("epochs", told["epochs"]),
        ("parameters", None if told["parameters"] is None else f"{told['parameters']:,}"),
        ("code", _format_code(told)),
        ("data fingerprint", told["fingerprint"]),
        ("test set sha256", told["test_sha256"]),
        ("hardware", _format_hardware(told)),
        ("started", told["started"]),
        ("wall time", format_duration(told["seconds"])),
        ("GPU-hours", f"{hours:.4g}" if (hours := told["gpu_hours"]) else None),
        ("images / s", None if (rate := told["images_per_second"]) is None else f"{rate:,.0f}"),
        ("peak memory", _format_memory(told["peak_memory_bytes"])),
        ("versions", _format_section(told["versions"])),
        ("implementations", _format_section(told["implementations"])),
        ("checkpoint", told["checkpoint"]),
        ("W&B", _run(told["wandb"])),
        ("damaged", told["damaged"]),
    ]
    return [(name, str(text)) for name, text in found if text not in (None, "")]


def format_duration(seconds: float | None) -> str | None:
    """`19.5 s`, `4 min 10 s`, `2 h 03 min`."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes} min {rest:02d} s"
        if minutes < 60
        else f"{minutes // 60} h {minutes % 60:02d} min"
    )


def _format_metrics(metrics: Mapping[str, float]) -> str:
    texts = []
    for name, value in sorted(
        metrics.items(), key=lambda item: (not item[0].startswith("test"), item)
    ):
        way = metric_format.measure_of(name)
        texts.append(f"{name} {way.format_number(value)}{way.unit}")
    return ", ".join(texts)


def _format_code(told: Mapping[str, Any]) -> str:
    commit = told["commit"] or "no commit known"
    dirty = ", with changes that were not committed" if told["dirty"] else ""
    package, numerics = told["package"] or MISSING, told["numerics"] or MISSING
    return f"{commit}{dirty}; package {package}, numerics {numerics}"


def _format_hardware(told: Mapping[str, Any]) -> str | None:
    machine = told["machine"] or {}
    cores, memory = machine.get("cores"), machine.get("memory_bytes")
    parts = [told["hardware"], f"{cores} cores" if cores else None]
    parts.append(f"{memory / 2**30:.0f} GiB" if memory else None)
    return ", ".join(part for part in parts if part)


def _format_memory(peak: Mapping[str, int | None] | None) -> str:
    found = {name: value for name, value in (peak or {}).items() if value}
    return ", ".join(f"{name} {value / 2**20:,.0f} MiB" for name, value in found.items())


def _format_section(section: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{key} {format_value(value)}" for key, value in flat(section or {}).items())


def _run(run: Mapping[str, Any] | None) -> str | None:
    if run is None:
        return "not tracked"
    place = "/".join(part for part in (run["entity"], run["project"], run["id"]) if part)
    return f"{place} ({run['mode']})"


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
        "hardware": cell.hardware,
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


@dataclass(frozen=True)
class CellDetails:
    """One cell, in words. told: see `origin.of`; number: the table's metric; config: where
    it is not its field's.
    """

    anchor: str
    seed: int
    number: str
    told: Mapping[str, Any]
    facts: Sequence[tuple[str, str]]
    config: str | None
    evaluations: tuple[str, ...]


@dataclass(frozen=True)
class FieldDetails:
    """The cells of one field, which is `text`; config: what they share, all but the seed."""

    anchor: str
    name: str
    column: str
    text: str
    counts: str
    config: str
    cells: tuple[CellDetails, ...]


def field_details(table: ResultTable, field: FieldCells, text: str) -> FieldDetails:
    """The details of a field; text: as the table has it."""
    shared = _config_of(next(iter(field.cells.values())))
    return FieldDetails(
        anchor=make_anchor(field.row, field.column),
        name=field.name,
        column=column_heading(table, field),
        text=text,
        counts=describe_counts(list(field.cells.values())),
        config=_list_config(shared),
        cells=tuple(_cell_details(table, field, seed, shared) for seed in sorted(field.cells)),
    )


def column_heading(table: ResultTable, field: FieldCells) -> str:
    """Its column's name, where that tells fields apart."""
    return column_name(table, field.column) if len(table.columns) > 1 else ""


def make_anchor(row: int, column: int, seed: int | None = None) -> str:
    """The place on the page of a field's cells, or of one of them."""
    return f"cells-{row}-{column}" + ("" if seed is None else f"-{seed}")


def describe_counts(cells: Sequence[KnownCell]) -> str:
    """`9 finished, 6 not run`."""
    found = Counter(STATUS[cell.entry.status] for cell in cells)
    known = [status for status in STATUS.values() if status in found]
    return "; ".join(f"{found[status]} {status}" for status in known)


def _cell_details(
    table: ResultTable, field: FieldCells, seed: int, shared: Mapping[str, Any]
) -> CellDetails:
    cell = field.cells[seed]
    told, config = collect_origin(cell), _config_of(cell)
    number = cell.result.get("metrics", {}).get(table.sweep.metric)
    return CellDetails(
        anchor=make_anchor(field.row, field.column, seed),
        seed=seed,
        number=""
        if number is None
        else f"{table.measure.format_number(number)}{table.measure.unit}",
        told=told,
        facts=list_facts(told),
        config=None if config == shared else _list_config(config),
        evaluations=cell.evaluations,
    )


def _config_of(cell: KnownCell) -> dict[str, Any]:
    return {key: value for key, value in cell.point.cell.science.items() if key != "seed"}


def _list_config(config: Mapping[str, Any]) -> str:
    """A line for each key, as overrides name it: YAML of the whole takes ten times as long."""
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in flat(config).items())
