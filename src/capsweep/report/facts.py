"""What a person reads of a cell: names and texts."""

from collections.abc import Mapping
from typing import Any

from capsweep.config.cell import flat
from capsweep.report.grid import MISSING, format_value
from capsweep.statistics import measure

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
        way = measure.measure_of(name)
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
